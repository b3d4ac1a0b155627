//! Shares of the optimizer's moments over MPI and gloo.

use crate::harness::*;

/// The last step has one sample for all ranks together. The run is continued with the option off.
#[test]
fn shares_have_the_same_bits_over_every_transport() {
    let lab = Lab::new();
    let options = ["--epochs=1", "--train-samples=337", "--reduce=ordered", "--clip-norm=0.5"];
    for ranks in [2, 3] {
        let of = |backend: &str, more: &str| {
            let name = &format!("{backend}{ranks}{more}");
            lab.train(ranks, name, &[&options[..], &["--backend", backend, more]].concat());
            let mut command = on_ranks(ranks, binary());
            command.args(["train", "--epochs=2", "--shard-optimizer=off", "--resume"]).arg(lab.path(name));
            assert!(run(command).status.success());
            let run = lab.completed(name);
            ["weights_sha256", "test_loss", "train_loss"].map(|key| run[key].clone())
        };
        let shares = of("mpi", "--shard-optimizer");
        assert_eq!(shares, of("gloo", "--shard-optimizer"), "{ranks} ranks");
        assert_eq!(shares, of("gloo", "--overlap=on"), "{ranks} ranks");
    }
}
