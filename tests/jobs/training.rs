//! Jobs whose ranks have different folders or data sets, and a job of many ranks.

use std::process::Command;

use crate::harness::*;

#[test]
fn eval_needs_the_run_directory_on_rank_0_only() {
    let lab = Lab::new();
    let run = lab.train(2, "here/run", &["--epochs", "1", "--test-samples", "333"]);
    std::fs::create_dir(lab.path("elsewhere")).unwrap();
    // mpirun starts one program for each part between colons.
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (i, folder) in ["here", "elsewhere"].into_iter().enumerate() {
        if i > 0 {
            command.arg(":");
        }
        command.args(["-n", "1", "--wdir"]).arg(lab.path(folder));
        command.args([binary(), "eval", "--checkpoint", "run"]);
    }
    let output = crate::harness::run(command);
    assert!(output.status.success(), "{}", text(&output));
    let expected = format!("test accuracy {:.2}%", run["test_accuracy"].as_f64().unwrap());
    assert!(text(&output).contains(&expected), "{} lacks {expected}", text(&output));
    assert!(text(&output).contains("of 333 samples"), "{}", text(&output));
}

/// If ranks normalised the same samples differently, they would train on different data.
#[test]
fn ranks_with_another_normalisation_are_rejected() {
    let lab = Lab::new();
    std::fs::write(lab.path("table.csv"), "x,class\n1,a\n2,a\n3,b\n4,b\n").unwrap();
    let mut command = Command::new("mpirun");
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .arg("--oversubscribe");
    for (i, mean) in ["0.5", "9"].into_iter().enumerate() {
        let mut import = Command::new(binary());
        import.args(["data", "import"]).arg(lab.path("table.csv")).arg("--out");
        import.arg(lab.path(&format!("{i}/data"))).args(["--mean", mean]);
        assert!(run(import).status.success());
        if i > 0 {
            command.arg(":");
        }
        command.args(["-n", "1", "--wdir"]).arg(lab.path(&i.to_string()));
        command.args([binary(), "train", "--model", "mlp", "--data-root", "data", "--epochs", "1", "--out"]);
        command.arg(lab.path("run"));
    }
    let output = must_fail(command);
    let printed = text(&output);
    assert!(printed.contains("the data set") && printed.contains("names and normalisation"), "{printed}");
}

/// 20 ranks need several rounds of each exchange, and more ranks than cores exit together.
#[test]
fn many_processes_train_as_two_that_accumulate() {
    let lab = Lab::new();
    let options =
        ["--epochs", "1", "--train-samples", "230", "--test-samples", "50", "--train-batch-size", "2"];
    let few = lab.train(2, "few", &[&options[..], &["--accumulate", "10"]].concat());
    for backend in ["mpi", "gloo"] {
        let many = lab.train(20, backend, &[&options[..], &["--backend", backend]].concat());
        assert_eq!((&many["steps"], &many["world_size"]), (&few["steps"], &20.into()));
        for loss in ["train_loss", "test_loss"] {
            let [few, many] = [&few, &many].map(|run| run[loss].as_f64().expect("a loss"));
            assert!((few - many).abs() < 1e-5, "{backend}: {loss} {many} instead of {few}");
        }
    }
}
