//! Profile of inference.

use std::convert::Infallible;

use super::subject::Subject;
use super::{Measured, alternate};
use crate::model::Model;
use crate::profile::{OperatorWatch, Profile, Recorder, WatchedSamples};
use crate::train::Samples;

/// Profiles `batches` batches on this rank.
pub fn profile(subject: Subject, batches: usize) -> anyhow::Result<Measured> {
    let device = subject.config.device.device();
    let Subject { network, batches: mut source, .. } = subject;
    let (row, mut watch) = (WatchedSamples::row(), OperatorWatch::default());
    let Ok([profiled, plain]) = alternate(batches, |on| {
        let samples = source.next();
        let all = 0..samples.count();
        let scores = match on {
            true => {
                let (images, _) = WatchedSamples { samples, row }.batch(all, &device);
                network.apply_watched(images, None, watch.begin_forward())
            }
            false => network.forward(samples.batch(all, &device).0),
        };
        drop(scores);
        Ok::<(), Infallible>(())
    });
    let recorder = Recorder::stop().unwrap_or_default();
    Ok(Measured { profile: Profile::new(&recorder, &[], 1, batches), recorder, profiled, plain })
}
