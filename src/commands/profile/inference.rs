//! Profile of inference.

use std::convert::Infallible;

use super::subject::Subject;
use super::{Measured, alternate};
use crate::model::Model;
use crate::profile::Profile;
use crate::spans::{self, Recorder};
use crate::train::Samples;

/// Profiles `batches` batches on this rank.
pub fn profile(subject: Subject, batches: usize) -> anyhow::Result<Measured> {
    let device = subject.config.device.device();
    let Subject { network, batches: mut source, .. } = subject;
    let Ok([profiled, plain]) = alternate(batches, || {
        let samples = source.next();
        let (images, _) = spans::span(&spans::BATCH, || samples.batch(0..samples.count(), &device));
        drop(spans::forward(|| network.forward(images)));
        Ok::<(), Infallible>(())
    });
    let recorder = Recorder::stop().unwrap_or_default();
    Ok(Measured { profile: Profile::new(&recorder, &[], 1, batches), recorder, profiled, plain })
}
