//! Chooses the GPU of each rank for `--device cuda` and `--device tch-cuda:N`.
//!
//! With `--device cuda`, which names no number, the ranks of a machine take its GPUs in turn. Over mpi and
//! gloo, which send gradients through the host's memory, several ranks may share a GPU. NCCL needs one GPU
//! per rank.

use burn_mpi::World;

use crate::device::{DeviceKind, use_gpu};
use crate::options::{ConfigError, RunConfig};
use crate::train::BackendKind;

/// Checks that every rank has the GPU of `device`, and selects it. All ranks must call this function before
/// anything runs on the device.
///
/// # Errors
/// Every rank returns the error of the first rank that cannot use the device.
pub fn choose(world: &World, device: DeviceKind) -> anyhow::Result<()> {
    let Some(found) = found(device) else { return Ok(()) };
    use_gpu(world.agree(number(device, local_rank(world), found))?);
    Ok(())
}

/// Returns why a job with these options and `ranks` ranks on this machine is impossible, or `None` if it is
/// possible. `ranks` is `None` if the job runs on other machines; then only the build is checked.
pub fn impossible(config: &RunConfig, ranks: Option<usize>) -> Option<String> {
    if let Err(error) = config.check_built() {
        return Some(error.to_string());
    }
    let ranks = ranks?;
    let found = found(config.device)?;
    let gpus = *found.as_ref().unwrap_or(&0);
    match number(config.device, 0, found) {
        Err(reason) => Some(reason),
        Ok(_) if config.communication.backend == BackendKind::Nccl && gpus < ranks => Some(format!(
            "--backend nccl: requires one GPU per rank, but this machine has {gpus} for {ranks} ranks; choose mpi or \
             gloo, or a machine with more GPUs"
        )),
        Ok(_) => None,
    }
}

/// Returns the index of this rank among the ranks of its machine.
fn local_rank(world: &World) -> usize {
    let (mine, before) = (&world.places()[world.rank()], &world.places()[..world.rank()]);
    before.iter().filter(|place| place.boot_id == mine.boot_id).count()
}

/// Returns the number of GPUs that this process sees through the backend of `device`. The error says why the
/// process can use no GPU. `None` for a CPU device.
fn found(device: DeviceKind) -> Option<Result<usize, String>> {
    match device {
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda(_) => Some(burn_mpi_nccl::gpus().map(|gpus| gpus.len())),
        #[cfg(feature = "tch")]
        DeviceKind::TchCuda(_) => Some(Ok(burn_fused::libtorch_gpus())),
        // If the build lacks a GPU device, an earlier check has rejected the option.
        _ => None,
    }
}

/// Returns the number of a rank's GPU, counted from 0. If `device` contains a number, returns this number. If
/// not, the ranks of a machine take its `found` GPUs in turn; `local` is the index of the rank on its
/// machine.
fn number(device: DeviceKind, local: usize, found: Result<usize, String>) -> Result<usize, String> {
    let (wanted, others) = match device {
        DeviceKind::TchCuda(wanted) => (Some(wanted), "--device tch"),
        DeviceKind::Cuda(wanted) => (wanted, "--device flex"),
        _ => (None, "another device"),
    };
    let problem = match (found, wanted) {
        (Err(reason), _) => format!("requires NVIDIA's driver, but {reason}, or choose {others}"),
        (Ok(0), _) => {
            let without = match device {
                DeviceKind::TchCuda(_) => "libtorch sees no GPU, or was built without CUDA",
                _ => "this process sees no GPU",
            };
            format!(
                "{without}; run on a machine with an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide, or choose \
                 {others}"
            )
        }
        (Ok(1), Some(1..)) => {
            format!("this process sees one GPU, number 0; choose number 0, or {others}")
        }
        (Ok(found), Some(wanted)) if wanted >= found => {
            format!("this process sees {found} GPUs, numbered from 0; choose one of them, or {others}")
        }
        (Ok(found), wanted) => return Ok(wanted.unwrap_or(local % found)),
    };
    Err(ConfigError::new("device", device, problem).to_string())
}

#[cfg(test)]
mod tests {
    use super::DeviceKind::{Cuda, TchCuda};
    use super::*;
    use crate::options::tests::tells;

    #[test]
    fn ranks_take_the_gpus_in_turn() {
        let numbers: Vec<_> = (0..5).map(|local| number(Cuda(None), local, Ok(2))).collect();
        assert_eq!(numbers, [0, 1, 0, 1, 0].map(Ok));
        assert_eq!(number(Cuda(Some(1)), 0, Ok(2)), Ok(1));
        assert_eq!(number(TchCuda(1), 0, Ok(2)), Ok(1));
    }

    #[test]
    fn what_is_missing_is_one_line_with_what_to_do() {
        for (device, found, expected) in [
            (
                Cuda(None),
                Err("libcuda.so.1 cannot be loaded; run on another machine".into()),
                "--device cuda: … libcuda.so.1 cannot be loaded; run on another machine … --device flex",
            ),
            (Cuda(Some(1)), Ok(0), "--device cuda:1: … no GPU … CUDA_VISIBLE_DEVICES … --device flex"),
            (Cuda(Some(7)), Ok(1), "--device cuda:7: … one GPU … 0 … --device flex"),
            (Cuda(Some(2)), Ok(2), "--device cuda:2: … 2 GPUs … 0 … --device flex"),
            (TchCuda(0), Ok(0), "--device tch-cuda:0: libtorch … CUDA … --device tch"),
        ] {
            let line = number(device, 0, found).unwrap_err();
            assert!(tells(&line, expected), "{line}");
        }
    }
}
