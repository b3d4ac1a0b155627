//! The reference that a test case is compared with: plain Burn on the samples of all ranks.
//!
//! Each rank computes the reference alone: data, branches and sizes are functions of the case. One graph
//! contains the losses of all ranks and micro-batches, weighted by their number of samples, and one backward
//! computes the gradients.
//!
//! The graph has a copy of the module for each rank. Batch norm's running statistics are therefore per rank,
//! as in the job. The copies also give the magnitude of each rank's gradient, which bounds the rounding
//! errors of the wire type.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};

use super::case::{Case, Step};
use super::network::Network;
use super::plan::BatchId;
use super::samples::Samples;
use burn_mpi::ParamLayout;

/// The copies of the module, one per rank.
pub struct Reference {
    layout: ParamLayout,
    copies: Vec<Network>,
    device: Device,
}

/// The gradient of one parameter.
#[derive(Clone)]
pub struct Expected {
    /// Summed over ranks.
    pub sum: Vec<f64>,
    /// The absolute values of the ranks' gradients, summed over ranks.
    pub size: Vec<f64>,
}

impl Reference {
    /// Copies with the same `values`.
    pub fn new(case: &Case, world_size: usize, values: &[f32], device: &Device) -> Self {
        // The copies are built one by one: clones would share batch norm's running statistics.
        let copies: Vec<Network> = (0..world_size).map(|_| Network::build(&case.plan, device)).collect();
        let mut reference =
            Self { layout: ParamLayout::of_module(&copies[0]), copies, device: device.clone() };
        reference.set(values);
        reference
    }

    /// The gradients of `step` in visit order; `None` for a parameter that no rank used. Also updates the
    /// running statistics.
    pub fn gradients(&self, case: &Case, number: usize) -> Vec<Option<Expected>> {
        let step = &case.steps[number];
        let mut all = vec![None; self.layout.specs().len()];
        if let Some(loss) = self.loss(case, step, number) {
            let gradients = loss.backward();
            for copy in &self.copies {
                copy.visit(&mut Add { gradients: &gradients, all: &mut all, next: 0 });
            }
        }
        all
    }

    fn loss(&self, case: &Case, step: &Step, number: usize) -> Option<Tensor<1>> {
        let total = step.total();
        let mut sum: Option<Tensor<1>> = None;
        for (rank, (part, copy)) in step.ranks.iter().zip(&self.copies).enumerate() {
            for (micro, chunk) in part.chunks.iter().enumerate() {
                let batch = BatchId { step: number, rank, micro };
                let samples = Samples::at(&case.plan, batch, chunk.samples, &self.device);
                let loss = copy.loss(&case.plan, batch, &samples);
                let loss = loss.mul_scalar(chunk.samples as f64 / total as f64);
                sum = Some(match sum {
                    Some(sum) => sum + loss,
                    None => loss,
                });
            }
        }
        sum
    }

    /// Sets new weights; frozen parameters and running statistics are unchanged.
    pub fn set_trainable(&mut self, values: &[f32]) {
        let layout = &self.layout;
        self.copies = self.copies.drain(..).map(|copy| layout.write_trainable(copy, values)).collect();
    }

    /// Sets all values, including running statistics.
    pub fn set(&mut self, values: &[f32]) {
        // Burn delays the update of a running statistic, and would later overwrite these values. `valid`
        // applies the pending update now.
        self.copies.iter().for_each(|copy| drop(copy.valid()));
        let layout = &self.layout;
        self.copies = self.copies.drain(..).map(|copy| layout.write(copy, values)).collect();
    }

    /// The mean over ranks of all values. Only buffers (running statistics) differ between ranks. A running
    /// variance is that of all ranks: the mean variance, and the variance between the means of the ranks.
    pub fn mean_values(&self) -> Vec<f64> {
        let ranks: Vec<Vec<f32>> = self.copies.iter().map(|copy| self.layout.read(&copy.valid())).collect();
        let mean_of = |term: &dyn Fn(&[f32]) -> f64| {
            ranks.iter().map(|values| term(values)).sum::<f64>() / ranks.len() as f64
        };
        let mut all: Vec<f64> =
            (0..self.layout.len()).map(|at| mean_of(&|values| f64::from(values[at]))).collect();
        for pair in self.layout.specs().windows(2).filter(|pair| pair[1].name.ends_with("running_var")) {
            for (mean, variance) in pair[0].range.clone().zip(pair[1].range.clone()) {
                all[variance] += mean_of(&|values| (f64::from(values[mean]) - all[mean]).powi(2));
            }
        }
        all
    }
}

/// Adds the gradients of one rank's copy of the module.
struct Add<'a> {
    gradients: &'a Gradients,
    all: &'a mut [Option<Expected>],
    next: usize,
}

impl ModuleVisitor for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if !param.is_require_grad() {
            return;
        }
        let Some(gradient) = param.val().grad(self.gradients) else { return };
        let values: Vec<f32> = gradient.into_data().try_into_vec().expect("gradients are f32");
        let zeros = || Expected { sum: vec![0.0; values.len()], size: vec![0.0; values.len()] };
        let expected = self.all[index].get_or_insert_with(zeros);
        for (index, value) in values.iter().enumerate() {
            expected.sum[index] += f64::from(*value);
            expected.size[index] += f64::from(value.abs());
        }
    }
}
