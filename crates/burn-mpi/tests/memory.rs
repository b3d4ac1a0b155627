//! Checks the memory that a broadcast needs. It reads the peak memory of the process, so it is the only test
//! in its process.

use std::fs;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use burn_mpi::threads::{Options, run};
use burn_mpi::{CommError, ParamLayout, World, broadcast_module, check_equal_weights};

const LAYERS: usize = 16;
const WIDTH: usize = 1024;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// Reads a line of `/proc/self/status`, and returns its value in bytes.
fn status(key: &str) -> usize {
    let text = fs::read_to_string("/proc/self/status").expect("the status");
    let line = text.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
    let kib: usize = line.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
    kib * 1024
}

#[test]
fn a_broadcast_and_a_comparison_take_less_than_the_module_again() {
    let ranks = 2;
    let check = |world: &World| -> Result<(), CommError> {
        let device = Device::flex();
        let layers = (0..LAYERS).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device)).collect();
        let net = Net { layers };
        // Initialises the parameters, too.
        let parameters = 4 * ParamLayout::of_module(&net).len();
        world.barrier()?;
        if world.is_root() {
            // Resets the peak (proc(5)).
            fs::write("/proc/self/clear_refs", "5").expect("a file of this process");
        }
        world.barrier()?;
        let before = status("VmRSS:");
        let net = broadcast_module(world, net)?;
        check_equal_weights(world, &net)?;
        world.barrier()?;
        let more = status("VmHWM:").saturating_sub(before);
        assert!(before > ranks * parameters, "only {before} bytes in use, less than the modules need");
        assert!(more < ranks * parameters, "{more} bytes more; each rank has {parameters}");
        Ok(())
    };
    run(ranks, &Options::default(), check).unwrap();
}
