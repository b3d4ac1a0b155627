//! Checks that values arrive at other ranks as they were sent, or that all ranks get an error.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use burn_mpi::threads::{Options, run};
use burn_mpi::{CommError, World};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Value {
    wide: (u128, i128, u64, i64),
    keys: BTreeMap<(i8, Option<bool>), Variant>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    skipped: Option<u8>,
    #[serde(flatten)]
    flat: BTreeMap<String, f64>,
    either: Vec<Either>,
    single: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Variant {
    Unit,
    Of(f32),
    Named { value: Option<f64> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(f64),
    Text(String),
}

fn value(rank: usize) -> Value {
    let kinds = [Variant::Unit, Variant::Of(f32::MIN_POSITIVE), Variant::Named { value: Some(f64::MAX) }];
    let keys = [(-1, None), (7, Some(true)), (i8::MIN, Some(false))];
    Value {
        wide: (u128::MAX - rank as u128, i128::MIN, u64::MAX, i64::MIN),
        keys: keys.into_iter().zip(kinds).collect(),
        text: format!("rank {rank}\0\n\u{1F600}"),
        skipped: (rank == 1).then_some(0),
        flat: [("x".to_owned(), 0.1), ("y".to_owned(), -0.0)].into(),
        either: vec![Either::Text("1".to_owned()), Either::Number(f64::INFINITY)],
        single: vec![0.1, f32::MAX, -f32::MIN_POSITIVE / 8.0],
    }
}

#[test]
fn values_arrive_as_they_were_sent() {
    let check = |world: &World| -> Result<(), CommError> {
        assert_eq!(world.gather(&value(world.rank()))?, (0..3).map(value).collect::<Vec<_>>());
        assert_eq!(world.broadcast(&value(world.rank()))?, value(0));
        for ranks in world.gather(&(Some(f32::NAN), f64::NAN, f64::NEG_INFINITY, ()))? {
            assert!(ranks.0.is_some_and(f32::is_nan) && ranks.1.is_nan() && ranks.2 == f64::NEG_INFINITY);
        }
        Ok(())
    };
    for seed in 0..5 {
        run(3, &Options::default().with_seed(seed), check).unwrap();
    }
}

#[test]
fn a_value_that_cannot_be_sent_is_an_error_of_all_ranks() {
    for broken in 0..3 {
        let check = |world: &World| -> Result<_, CommError> {
            let name = if world.rank() == broken { vec![0xff] } else { b"a".to_vec() };
            let path = PathBuf::from(OsString::from_vec(name));
            let gathered = world.gather(&path).unwrap_err().to_string();
            let sent = world.broadcast(&path);
            assert_eq!(sent.is_err(), broken == 0, "{sent:?}");
            world.barrier()?;
            Ok(gathered)
        };
        for error in run(3, &Options::default(), check).unwrap() {
            let start = format!("rank {broken} on node0: ");
            assert!(error.starts_with(&start) && error.contains("UTF-8"), "{error}");
        }
    }
}
