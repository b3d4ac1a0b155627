//! Imports pictures: chooses one size and one number of channels for all pictures, and converts each picture.
//!
//! Pictures are read twice. The first pass reads the headers, to choose the size and the channels. The second
//! pass decodes the pictures in parallel, 128 at a time, and writes them in the order of the data set.

#[cfg_attr(not(feature = "pictures"), path = "without_codec.rs")]
pub(crate) mod codec;
pub(crate) mod folder;
pub(crate) mod inner_folders;
pub(crate) mod listed;
pub(crate) mod listing;
pub(crate) mod metadata;
#[cfg_attr(not(feature = "pictures"), expect(dead_code, reason = "only the codec reads it"))]
pub(crate) mod picture;
pub(crate) mod picture_names;
#[cfg_attr(
    not(all(feature = "pictures", feature = "parquet")),
    expect(dead_code, reason = "only the codec reads it, and only Parquet has parts of files")
)]
pub(crate) mod place;
pub(crate) mod split_folders;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use run_record::count;

use crate::error::without;
use crate::import::job::Job;
use crate::import::pictures::folder::{Found, Picture};
use crate::import::pictures::picture::{Fit, PictureInfo, Size, Target};
use crate::import::writer::Writer;
use crate::import::{ImportArgs, Imported, plan};
use crate::{DataError, Element};

/// Number of pictures that are decoded at once.
const TOGETHER: usize = 128;
/// Maximum number of sizes that a message lists.
const LISTED: usize = 3;

/// Imports the pictures of `found`. If the source is a data set of an earlier import, `known_fit` says how
/// that import fitted the pictures to their size.
pub(crate) fn import(found: Found, known_fit: Option<Fit>, job: &Job<'_>) -> Result<Imported, DataError> {
    let args = job.args;
    args.refuse_those_of_tables()?;
    if cfg!(not(feature = "pictures")) {
        bail!(&args.source, "{}", without("pictures", "pictures"));
    }
    let Found { classes, train, test } = found;
    let has_test = test.is_some();
    let test = test.unwrap_or_default();
    let all = train.len() + test.len();
    log::info!("{}: {} in {}", args.source.display(), count(all, "picture"), count(classes.len(), "class"));
    let mut broken = Broken::default();
    let (train, test) = look(train, test, &mut broken, job)?;
    let seen = || train.iter().chain(&test).map(|(picture, seen)| (&*picture.name, seen));
    let target = target(args, seen())?;
    log_special(seen());
    let [train, test]: [Vec<Picture>; 2] =
        [train, test].map(|split| split.into_iter().map(|(picture, _)| picture).collect());
    let test = has_test.then_some(test);
    let splits = plan::splits(args, train, test, &classes, |picture| picture.class)?;
    let shape = [if target.grey { 1 } else { 3 }, target.size.height as usize, target.size.width as usize];
    let samples = splits.iter().map(Vec::len).sum();
    let mut writer = Writer::create(job, shape, Element::U8, samples)?;
    let done = AtomicUsize::new(all);
    for (split, pictures) in splits.iter().enumerate() {
        for pictures in pictures.chunks(TOGETHER) {
            let read = |picture: &Picture| {
                let pixels = codec::read(&picture.place, target);
                job.step(done.fetch_add(1, Ordering::Relaxed) + 1, 2 * all)?;
                Ok(pixels)
            };
            let read = pictures.par_iter().map(read).collect::<Result<Vec<_>, DataError>>()?;
            for (picture, pixels) in pictures.iter().zip(read) {
                match pixels {
                    Ok(pixels) => {
                        writer.add(split, &pixels, picture.class, picture.name.clone())?;
                    }
                    Err(reason) => broken.add(picture, &reason),
                }
            }
        }
    }
    broken.finish(args)?;
    let fit = args.size.map(|_| args.fit.unwrap_or_default()).or(known_fit);
    writer.finish(job, classes, Vec::new(), fit)
}

type SeenPicture = (Picture, PictureInfo);

/// Reads the header of each picture. With `--skip-broken`, also decodes each picture: a picture that turns
/// out to be broken must not influence the common size.
fn look(
    train: Vec<Picture>,
    test: Vec<Picture>,
    broken: &mut Broken,
    job: &Job<'_>,
) -> Result<(Vec<SeenPicture>, Vec<SeenPicture>), DataError> {
    let all = train.len() + test.len();
    let done = AtomicUsize::new(0);
    let one = |picture: Picture| {
        let seen = codec::look(&picture.place).and_then(|seen| {
            if job.args.skip_broken {
                let own = Target { size: seen.size, fit: Fit::Stretch, grey: seen.grey };
                codec::read(&picture.place, own).map(|_| seen)
            } else {
                Ok(seen)
            }
        });
        job.step(done.fetch_add(1, Ordering::Relaxed) + 1, 2 * all)?;
        Ok((picture, seen))
    };
    let mut looked = |pictures: Vec<Picture>| -> Result<Vec<SeenPicture>, DataError> {
        let looked = pictures.into_par_iter().map(one).collect::<Result<Vec<_>, DataError>>()?;
        let mut known = Vec::with_capacity(looked.len());
        for (picture, seen) in looked {
            match seen {
                Ok(seen) => known.push((picture, seen)),
                Err(reason) => broken.add(&picture, &reason),
            }
        }
        Ok(known)
    };
    Ok((looked(train)?, looked(test)?))
}

/// Chooses the size and the number of channels of all pictures.
fn target<'p>(
    args: &ImportArgs,
    pictures: impl Iterator<Item = (&'p str, &'p PictureInfo)>,
) -> Result<Target, DataError> {
    let mut sizes: BTreeMap<Size, (usize, &str)> = BTreeMap::new();
    let mut all_grey = true;
    for (name, seen) in pictures {
        sizes.entry(seen.size).or_insert((0, name)).0 += 1;
        all_grey &= seen.grey;
    }
    let size = match (args.size, sizes.keys().next()) {
        (Some(size), _) => size,
        (None, None) => {
            bail!(&args.source, "contains no file that can be read as a picture");
        }
        (None, Some(only)) if sizes.len() == 1 => *only,
        (None, Some(_)) => {
            let mut common: Vec<_> = sizes.iter().collect();
            common.sort_by_key(|(_, (number, _))| std::cmp::Reverse(*number));
            let listed: Vec<String> = common
                .iter()
                .take(LISTED)
                .map(|(size, (number, first))| format!("{size} ({number}, such as {first})"))
                .collect();
            let more = match sizes.len().saturating_sub(LISTED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            bail!(
                &args.source,
                "the pictures have {} sizes (height x width): {}{more}; choose one, such as --size 64x64, and how \
                 to fit the pictures into it: --fit crop, pad or stretch",
                sizes.len(),
                listed.join(", ")
            );
        }
    };
    Ok(Target { size, fit: args.fit.unwrap_or_default(), grey: args.grey || (all_grey && !args.rgb) })
}

/// Logs one line for each special property of pictures, such as transparency.
fn log_special<'p>(pictures: impl Iterator<Item = (&'p str, &'p PictureInfo)>) {
    let mut found: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (name, seen) in pictures {
        seen.special.iter().for_each(|what| found.entry(what).or_insert((0, name)).0 += 1);
    }
    for (what, (number, first)) in found {
        log::info!("{} {what} (the first: {first})", count(number, "picture"));
    }
}

/// Number of pictures that cannot be read.
#[derive(Default)]
struct Broken(usize);

impl Broken {
    fn add(&mut self, picture: &Picture, reason: &str) {
        self.0 += 1;
        log::warn!("{} cannot be read: {reason}", picture.name);
    }

    /// Returns an error if there are broken files, unless `--skip-broken` leaves them out.
    fn finish(self, args: &ImportArgs) -> Result<(), DataError> {
        match self.0 {
            0 => Ok(()),
            number if args.skip_broken => {
                log::warn!("left out: {} that cannot be read", count(number, "picture"));
                Ok(())
            }
            number => bail!(
                &args.source,
                "{} cannot be read (see above): repair or remove such files, or leave them out with --skip-broken",
                count(number, "picture")
            ),
        }
    }
}
