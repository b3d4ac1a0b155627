//! In the place of `unpack` in a build without the feature `archives`.

use std::path::PathBuf;

use super::archive::Kind;
use super::job::Job;
use crate::DataError;
use crate::error::without;

pub(super) fn into_folder(_: Kind, job: &Job<'_>) -> Result<PathBuf, DataError> {
    bail!(&job.args.source, "{}", without("archives", "archives"))
}
