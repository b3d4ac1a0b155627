//! Buckets of a sharded state release their memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use burn_mpi::{Call, Collective, Element};

use super::*;

/// Counts the operations in flight, and the buffers that its user has and that are for whole buckets.
struct Counting {
    inner: Box<dyn Collective>,
    counts: Rc<RefCell<Counts>>,
}

#[derive(Default)]
struct Counts {
    in_flight: BTreeMap<usize, Call>,
    most_in_flight: usize,
    whole: usize,
}

impl Collective for Counting {
    fn transport(&self) -> &str {
        self.inner.transport()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn start(&mut self, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        if let Some(bucket) = operation.bucket {
            let mut counts = self.counts.borrow_mut();
            counts.whole -= usize::from(operation.call == Call::ReduceScatter);
            counts.in_flight.insert(bucket, operation.call);
            counts.most_in_flight = counts.most_in_flight.max(counts.in_flight.len());
        }
        self.inner.start(operation, buffer)
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        self.inner.poll()
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.inner.is_done(bucket)
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let mut counts = self.counts.borrow_mut();
        counts.whole += usize::from(counts.in_flight.remove(&bucket) == Some(Call::AllGather));
        drop(counts);
        self.inner.wait(bucket)
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        self.inner.all_reduce(buffer, how)
    }

    fn buffer(&mut self, element: Element, length: usize) -> Wire {
        self.counts.borrow_mut().whole += 1;
        self.inner.buffer(element, length)
    }

    fn recycle(&mut self, buffer: Wire) {
        self.counts.borrow_mut().whole -= 1;
        self.inner.recycle(buffer);
    }
}

/// Buckets of a sharded state need memory for all their values only while they are filled, in flight or
/// gathered.
#[test]
fn a_rank_keeps_no_whole_bucket_after_its_sums_are_known() {
    for (seed, wire) in (0..8).flat_map(|seed| [WireType::F32, WireType::Bf16].map(|wire| (seed, wire))) {
        let most = run(3, &with_seed(seed), |world| {
            let mut net = net(13);
            let counts = Rc::new(RefCell::new(Counts::default()));
            let inner = connect(world, Backend::Mpi, &Transport::default())?;
            let counting = Counting { inner, counts: counts.clone() };
            let options = options(true).with_wire(wire);
            let mut sync = GradientSync::of_module(world, Box::new(counting), &net, options);
            let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
            let mut most = (0, 0);
            for step in 0..STEPS {
                backward(world, &mut sync, &net, step)?;
                most.0 = most.0.max(std::mem::take(&mut counts.borrow_mut().most_in_flight));
                sync.reduce(Signals::default())?;
                assert!(sync.report().buckets.len() > 4, "{} buckets", sync.report().buckets.len());
                assert_eq!(counts.borrow().whole, 0, "after the sums, seed {seed}, {wire}");
                net = optimizer.step(RATE, net, &mut sync)?;
                assert_eq!(counts.borrow().whole, 0, "after the gather, seed {seed}, {wire}");
                most.1 = most.1.max(std::mem::take(&mut counts.borrow_mut().most_in_flight));
            }
            Ok::<_, CommError>(most)
        });
        for (in_backward, after) in most.unwrap() {
            assert!((1..=2).contains(&in_backward) && after == 4, "{in_backward} {after}, seed {seed}");
        }
    }
}
