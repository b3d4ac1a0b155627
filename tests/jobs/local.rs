//! Local updates over MPI and gloo.

use std::process::Stdio;

use crate::harness::*;

const STREAMING: [&str; 9] = [
    "--sync-every=4",
    "--fragments=2",
    "--sync-delay=1",
    "--merge=0.5",
    "--outer=nesterov",
    "--batch-norm",
    "--dropout=0.3",
    "--reduce=ordered",
    "--train-batch-size=16",
];

/// The last step has one sample for all ranks together.
#[test]
fn local_updates_have_the_same_bits_over_every_transport() {
    let lab = Lab::new();
    let options = [&STREAMING[..], &["--epochs=2", "--train-samples=193", "--local-after=1"]].concat();
    for ranks in [2, 3] {
        let of = |backend: &str| {
            let options = [&options[..], &["--backend", backend, "--eval-every=4"]].concat();
            let run = lab.train(ranks, &format!("{backend}{ranks}"), &options);
            ["weights_sha256", "test_loss", "train_loss", "bytes_per_step"].map(|key| run[key].clone())
        };
        assert_eq!(of("mpi"), of("gloo"), "{ranks} ranks");
    }
}

/// One rank is killed in the middle of an epoch. The other rank waits for it in the next synchronisation.
#[test]
fn a_run_that_lost_a_rank_resumes_to_the_bits_of_an_uninterrupted_one() {
    let lab = Lab::new();
    for backend in ["mpi", "gloo"] {
        let options =
            [&STREAMING[..], &["--epochs=3", "--train-samples=1600", "--backend", backend]].concat();
        let [whole, cut] = ["whole", "cut"].map(|kind| format!("{kind}-{backend}"));
        lab.train(2, &whole, &options);
        let mut command = lab.command(2, &cut, &[&options[..], &["--checkpoint-every=7"]].concat());
        let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until(&mut job, "a checkpoint", || lab.checkpoints(&cut).len() > 1);
        signal(children(job.id().into())[1], "-KILL");
        assert!(!ended(job).status.success());
        assert_ne!(lab.run_json(&cut)["status"], "completed");
        let mut command = on_ranks(2, binary());
        let output = run(command.args(["train", "--checkpoint-every=none", "--resume"]).arg(lab.path(&cut)));
        assert!(
            output.status.success() && text(&output).contains("resuming after step"),
            "{}",
            text(&output)
        );
        lab.assert_same(&cut, &whole);
    }
}
