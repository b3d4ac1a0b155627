//! Checks burn-mpi's examples of training loops, and the functions of the library that they use:
//!
//! ```text
//! mpirun -n N loops own_loop|regression|char_gpt|char_lstm gradients|train|fail|panic|few|other
//! mpirun -n N loops library metrics|misuse|records|shards|full FOLDER
//! ```

#[path = "../../difference.rs"]
mod difference;
mod examples;
mod faults;
mod gradients;
mod metrics;
mod misuse;
mod records;
mod shards;

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::ExitCode;

use burn_mpi::{ParamLayout, World, run};
use examples::{Characters, Example, OwnLoop, Regression};
use faults::{Fault, Faulty};

/// The number of samples of a training. The last step has one sample, which rank 0 gets.
fn samples(world: &World, batch: usize) -> usize {
    2 * batch * world.size() + 1
}

fn main() -> ExitCode {
    run(|world| {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["own_loop", what, ..] => check::<OwnLoop>(world, what)?,
            ["regression", what, ..] => check::<Regression>(world, what)?,
            ["char_gpt", what, ..] => check::<Characters<false>>(world, what)?,
            ["char_lstm", what, ..] => check::<Characters<true>>(world, what)?,
            ["library", "metrics", _] => metrics::check(world)?,
            ["library", "records", folder] => records::check(world, Path::new(folder))?,
            ["library", "full", folder] => records::full(world, Path::new(folder))?,
            ["library", "misuse", folder] => misuse::check(world, Path::new(folder))?,
            ["library", "shards", _] => shards::check(world)?,
            _ => return Err("usage: loops EXAMPLE|library CHECK [FOLDER]".into()),
        }
        println!("rank {} of {}: {} holds", world.rank(), world.size(), words[1]);
        Ok(())
    })
}

fn check<E: Example>(world: &World, what: &str) -> Result<(), Box<dyn Error>> {
    let last = world.rank() == world.size() - 1;
    let count = samples(world, E::BATCH);
    // Reading fails on the last rank, in its first batch (in the order of the data set).
    let faulty = |fault| Box::new(Faulty { dataset: E::data(count), fault, active: last, reads: 9.into() });
    match what {
        "gradients" => return gradients::check::<E>(world),
        "train" => {
            let net = E::train(world, E::data(count), E::WIDTH)?;
            let mut hasher = DefaultHasher::new();
            ParamLayout::of_module(&net)
                .read(&net)
                .iter()
                .for_each(|value| value.to_bits().hash(&mut hasher));
            let hash = format!("{:x}", hasher.finish());
            println!("rank {} of {}: weights {hash}", world.rank(), world.size());
        }
        "fail" => drop(E::train(world, faulty(Fault::Error), E::WIDTH)?),
        "panic" => drop(E::train(world, faulty(Fault::Panic), E::WIDTH)?),
        "few" => drop(E::train(world, E::data(world.size() - 1), E::WIDTH)?),
        "other" => drop(E::train(world, E::data(count), E::WIDTH * (1 + usize::from(last)))?),
        _ => return Err(format!("unknown check '{what}'").into()),
    }
    Ok(())
}
