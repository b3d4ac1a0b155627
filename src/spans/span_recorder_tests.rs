//! Tests of the span recorder: sums of nested spans, spans in backward, and buckets.

use std::thread::sleep;

use super::*;
use crate::spans::{begin_batch, end_batch, follow, in_row, on_sync};

const PAUSE: Duration = Duration::from_millis(2);

#[test]
fn inner_spans_are_in_the_total_and_not_in_the_own_time() {
    let mut recorder = SpanRecorder::new(None);
    let [outer, inner] = ["a", "b"].map(|name| recorder.register(Operator::new(name, name), Phase::Forward));
    recorder.start();
    for _ in 0..3 {
        begin_batch();
        in_row(outer, || {
            sleep(PAUSE);
            in_row(inner, || sleep(PAUSE));
        });
        end_batch();
    }
    let recorder = SpanRecorder::stop().expect("it was started");
    assert!(SpanRecorder::stop().is_none());
    let rows = &recorder.rows;
    assert_eq!((rows[outer].calls, rows[inner].calls, rows[REST].calls), (3, 3, 3));
    assert_eq!(rows[outer].own + rows[inner].total, rows[outer].total);
    assert!(rows[outer].own >= 3 * PAUSE && rows[inner].own == rows[inner].total);
    let own: Duration = rows.iter().map(|row| row.own).sum();
    assert_eq!(own, rows[REST].total, "own times sum to the wall time");
}

#[test]
fn backward_spans_follow_each_other_and_contain_copies() {
    let mut recorder = SpanRecorder::new(None);
    let [last, first] = ["b", "a"].map(|name| recorder.register(Operator::new(name, name), Phase::Backward));
    recorder.start();
    begin_batch();
    follow(last);
    on_sync(SyncEvent::CopyBegin);
    on_sync(SyncEvent::CopyEnd);
    on_sync(SyncEvent::BucketBegin(0));
    on_sync(SyncEvent::BucketEnd(0));
    follow(first);
    sleep(PAUSE);
    on_sync(SyncEvent::BackwardEnd);
    on_sync(SyncEvent::CollectEnd);
    on_sync(SyncEvent::BucketBegin(0));
    on_sync(SyncEvent::BucketEnd(0));
    end_batch();
    let recorder = SpanRecorder::stop().expect("it was started");
    let rows = &recorder.rows;
    assert_eq!((rows[last].calls, rows[first].calls, rows[COPY].calls), (1, 1, 1));
    assert!(rows[first].own >= PAUSE && rows[last].own < rows[last].total);
    let (bucket, hidden) = recorder.buckets().next().expect("a bucket");
    assert_eq!(bucket.calls, 2);
    assert!(hidden >= PAUSE, "in flight until backward ended: {hidden:?}");
}

#[test]
fn without_a_recorder_nothing_happens() {
    begin_batch();
    assert_eq!(in_row(5, || 7), 7);
    on_sync(SyncEvent::CopyEnd);
    end_batch();
    assert!(SpanRecorder::stop().is_none());
}

#[test]
fn clearing_keeps_operators() {
    let mut recorder = SpanRecorder::new(None);
    let row = recorder.register(Operator::new("a", "a"), Phase::Data);
    recorder.start();
    begin_batch();
    in_row(row, || ());
    end_batch();
    let mut recorder = SpanRecorder::stop().expect("it was started");
    recorder.clear();
    assert_eq!(recorder.sums().count(), 0);
    assert_eq!(recorder.rows[row].operator.name(), "a");
}
