//! `mpiburn export`: writes the network of a checkpoint as an ONNX file.

use anyhow::Context;

use super::{Refused, checkpoint, on_root, outputs};
use crate::device::DeviceKind;
use crate::export::{OnnxFile, float_network, int8_network};
use crate::options::{ExportArgs, RunConfig};
use burn_mpi::World;
use run_record::files::replace_file;

/// Exports on rank 0 only, even under mpirun.
pub fn run(world: &World, args: &ExportArgs) -> anyhow::Result<()> {
    if let Some(line) = on_root(world, || export(args))? {
        println!("{line}");
    }
    Ok(())
}

/// Writes the file and returns a line that describes it.
fn export(args: &ExportArgs) -> anyhow::Result<String> {
    // The required ending keeps users from overwriting a file of a run by mistake.
    if args.out.extension().is_none_or(|extension| extension != "onnx") {
        return Err(Refused(format!("--out {}: must end in .onnx", args.out.display())).into());
    }
    outputs::check(&[("out", Some(&args.out))], &[])?;
    let stored = checkpoint::stored_run(&args.run)?;
    let config = RunConfig { device: DeviceKind::Flex, ..stored.config };
    let network = config.network(stored.noted.dimensions, &config.device.device());
    let layout = network.parameters();
    let weights = checkpoint::load(&args.run, &layout)?;
    let mut file = if args.int8 {
        int8_network(&checkpoint::load_int8(&weights, &config, &network)?.file)
    } else {
        float_network(&layout.write(network, &weights.values))
    };
    file.describe(&stored.noted.data);
    let (bytes, OnnxFile { opset, ir_version, .. }) = (file.bytes(), file);
    replace_file(&args.out, &bytes).with_context(|| format!("cannot write {}", args.out.display()))?;
    Ok(format!(
        "{}: {} bytes, exported from {} (opset {opset}, IR version {ir_version})",
        args.out.display(),
        bytes.len(),
        weights.folder.display()
    ))
}
