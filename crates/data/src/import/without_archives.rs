//! Replaces `unpack` in a build without the feature `archives`.

use std::path::PathBuf;

use super::archive::ArchiveKind;
use super::job::Job;
use crate::DataError;
use crate::error::without;

pub(super) fn into_folder(_: ArchiveKind, job: &Job<'_>) -> Result<PathBuf, DataError> {
    bail!(&job.args.source, "{}", without("archives", "archives"))
}
