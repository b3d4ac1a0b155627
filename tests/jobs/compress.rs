//! Compressed gradients over MPI and gloo.

use crate::harness::*;

/// The last step has one sample for all ranks together.
#[test]
fn compressed_gradients_have_the_same_bits_over_every_transport() {
    let lab = Lab::new();
    let options = [
        "--compress=powersgd",
        "--compress-rank=2",
        "--reduce=ordered",
        "--bucket-mb=0.004",
        "--train-samples=337",
        "--train-batch-size=16",
    ];
    for ranks in [2, 3] {
        let of = |backend: &str| {
            let [whole, cut] = ["whole", "cut"].map(|kind| format!("{kind}-{backend}{ranks}"));
            let options = [&options[..], &["--backend", backend]].concat();
            let record = lab.train(ranks, &whole, &[&options[..], &["--epochs=2"]].concat());
            lab.train(ranks, &cut, &[&options[..], &["--epochs=1"]].concat());
            let mut command = on_ranks(ranks, binary());
            command.args(["train", "--epochs=2", "--resume"]).arg(lab.path(&cut));
            let output = run(command);
            assert!(output.status.success(), "{}", text(&output));
            lab.assert_same(&cut, &whole);
            ["weights_sha256", "test_loss", "train_loss", "bytes_per_step"].map(|key| record[key].clone())
        };
        assert_eq!(of("mpi"), of("gloo"), "{ranks} ranks");
    }
}

#[test]
fn a_verbose_run_names_the_compressed_parameters_and_shows_the_time() {
    for (model, rank, expected) in [
        (
            "convnet",
            "2",
            "compressed with rank 2: conv2.weight, linear.weight; averaged exactly: 4 other parameters",
        ),
        (
            "mlp",
            "4",
            "compressed with rank 4: layer1.weight, layer2.weight; averaged exactly: 4 other parameters",
        ),
    ] {
        let mut command = on_ranks(2, binary());
        command.args(["-v", "bench", "step", "--steps=2", "--model", model, "--compress=powersgd"]);
        let output = run(command.args(["--compress-rank", rank]));
        let printed = text(&output);
        assert!(output.status.success() && printed.contains(expected), "{printed}");
        assert!(printed.contains("part of the copy of gradients"), "{printed}");
    }
}
