//! Which operations gloo has: all but reduce-scatter.

use crate::GlooContext;
use crate::gloo::algorithm::GlooAlgorithm;
use crate::{Backend, CommError, Primitives, Wire};

/// Tag of messages between two ranks; there is one at a time.
const TAG: u32 = 0;

impl Primitives for GlooContext {
    fn backend(&self) -> Backend {
        Backend::Gloo
    }

    fn send(&mut self, buffer: &[u8], to: usize) -> Result<(), CommError> {
        Self::send(self, buffer, to, TAG)
    }

    fn receive(&mut self, buffer: &mut [u8], from: usize) -> Result<(), CommError> {
        Self::receive(self, buffer, from, TAG)
    }

    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        Self::broadcast(self, buffer, root)
    }

    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        Self::all_reduce(self, buffer, GlooAlgorithm::Ring)
    }

    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        sum.bytes_mut().copy_from_slice(mine.bytes());
        Self::reduce(self, sum, root)
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        Self::all_gather(self, mine, all)
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        Self::gather(self, mine, all, root)
    }

    fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        Self::scatter(self, all, mine, root)
    }

    fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        Self::all_to_all(self, from, to)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        Self::barrier(self)
    }
}
