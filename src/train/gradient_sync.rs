//! The average of all ranks' gradients.
//!
//! A step's loss is the mean over all ranks' samples of that step. A rank
//! computes the mean over its own, so its gradients count by its share of the
//! samples: each is scaled on its way into the bucket, and the sum over ranks
//! is the gradient of the whole. A rank with no samples left sends zeros.
//!
//! The first step is the probe: its buckets are in reverse visit order, and it
//! notes in which order gradients really become final, which differs (Burn's
//! linear biases come last of all). Rank 0's order is then everybody's.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor, TensorData};

use super::buckets::{Buckets, CommTimes, Signals};
use super::collector::collect;
use super::sync_options::{SyncOptions, plan_of};
use crate::comm::{Collective, CommError, World};
use crate::model::ParamLayout;
use crate::ops::gradient_hook;
use crate::record::ArrivalOrder;

/// Collects this rank's gradients and averages them with the other ranks'.
pub struct GradientSync<'w> {
    world: &'w World,
    options: SyncOptions,
    layout: ParamLayout,
    arrival: Option<ArrivalOrder>,
    /// Whether the order was learned in the step before.
    adopt_next: bool,
    /// Registrations of the first step's backward.
    probe: Vec<usize>,
    /// Away only while backward runs.
    buckets: Option<Buckets>,
}

impl<'w> GradientSync<'w> {
    /// Averages the gradients of a module with this layout over `collective`.
    pub fn new(
        world: &'w World,
        collective: Box<dyn Collective>,
        layout: &ParamLayout,
        options: SyncOptions,
    ) -> Self {
        let trainable = |&param: &usize| layout.specs()[param].trainable;
        let order: Vec<usize> = (0..layout.specs().len()).rev().filter(trainable).collect();
        let plan = plan_of(layout, &order, &options, world.size());
        let SyncOptions { reduction, wire, overlap, .. } = options;
        let params = layout.specs().len();
        let mut buckets = Buckets::new(collective, reduction, wire, overlap, plan, params);
        buckets.begin();
        Self {
            world,
            options,
            layout: layout.clone(),
            arrival: None,
            adopt_next: false,
            probe: Vec::new(),
            buckets: Some(buckets),
        }
    }

    /// The same for a module of any program.
    pub fn of_module<M: Module>(
        world: &'w World,
        collective: Box<dyn Collective>,
        module: &M,
        options: SyncOptions,
    ) -> Self {
        Self::new(world, collective, &ParamLayout::of(module), options)
    }

    /// One whole step for programs with an optimizer of Burn's: backward from
    /// the mean `loss` over this rank's `own` of the step's `total` samples,
    /// and the gradients averaged over all ranks.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn average<M: Module>(
        &mut self,
        loss: &Tensor<1>,
        module: &M,
        own: usize,
        total: usize,
    ) -> Result<GradientsParams, CommError> {
        self.begin();
        if own > 0 {
            self.backward(loss, module, own, total, (true, true))?;
        }
        self.finish(Signals::default())?;
        let mut register = Register { sync: self, gradients: GradientsParams::new(), next: 0 };
        module.visit(&mut register);
        Ok(register.gradients)
    }

    /// Takes the order of an earlier run, so that its steps are continued to
    /// the bit.
    pub fn adopt(&mut self, arrival: ArrivalOrder) {
        let plan = plan_of(&self.layout, &arrival.order, &self.options, self.world.size());
        let buckets = self.buckets();
        buckets.uses.clone_from(&arrival.uses);
        buckets.set_plan(plan);
        buckets.begin();
        self.arrival = Some(arrival);
        self.adopt_next = false;
    }

    /// The order learned in the first step; none before it is over.
    pub fn arrival(&self) -> Option<&ArrivalOrder> {
        self.arrival.as_ref()
    }

    /// Whether buckets travel while backward goes on; to be changed between
    /// steps, on all ranks.
    pub fn set_overlap(&mut self, overlap: bool) {
        self.buckets().overlap = overlap;
    }

    /// Runs backward from the mean `loss` over this rank's `own` of the step's
    /// `total` samples. A step may have several such parts, the `first` and
    /// the `last` marked; gradients travel during the last one.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn backward<M: Module>(
        &mut self,
        loss: &Tensor<1>,
        module: &M,
        own: usize,
        total: usize,
        (first, last): (bool, bool),
    ) -> Result<(), CommError> {
        let Some(mut buckets) = self.buckets.take() else { return Ok(()) };
        // Until the uses are known, no gradient is known to be final.
        let probing = self.arrival.is_none();
        buckets.begin_micro(own as f32 / total.max(1) as f32, first, last);
        if probing {
            buckets.uses.fill(usize::MAX);
        }
        let result = match gradient_hook::backward(loss, module, buckets) {
            Ok((gradients, mut buckets)) => {
                let result = self.complete(gradients, module, &mut buckets);
                (result, buckets)
            }
            Err(mut buckets) => {
                collect(loss.backward(), module, &mut buckets, |_| true);
                (Ok(()), buckets)
            }
        };
        self.buckets = Some(result.1);
        result.0
    }

    /// Hands over what the hook did not: all gradients of the probe, and later
    /// those of parameters that this step used less often than the probe did.
    fn complete<M: Module>(
        &mut self,
        gradients: Gradients,
        module: &M,
        buckets: &mut Buckets,
    ) -> Result<(), CommError> {
        let uses = |param: usize| buckets.registered.iter().filter(|&&p| p == param).count();
        let uses: Vec<usize> = (0..buckets.uses.len()).map(uses).collect();
        if let Some(param) = (0..uses.len()).find(|&param| uses[param] > buckets.uses[param]) {
            return Err(CommError::Graph(format!(
                "{} is used {} times in this step and was used {} times in the first: \
                 its gradient has left already; use --overlap off",
                self.layout.specs()[param].name,
                uses[param],
                buckets.uses[param]
            )));
        }
        let late = |param: usize| uses[param] < buckets.uses[param];
        let specs = self.layout.specs().iter().enumerate();
        let late: Vec<usize> =
            specs.filter(|(param, spec)| spec.trainable && late(*param)).map(|(param, _)| param).collect();
        if !late.is_empty() {
            collect(gradients, module, buckets, |param| late.contains(&param));
        }
        if self.arrival.is_none() {
            self.probe.clone_from(&buckets.registered);
        }
        Ok(())
    }

    /// Makes rank 0's probe everybody's order, from the next step on.
    fn learn(&mut self) -> Result<(), CommError> {
        let trainable = |&param: &usize| self.layout.specs()[param].trainable;
        let mut order: Vec<usize> = (0..self.layout.specs().len()).filter(trainable).collect();
        let last = |param: &usize| self.probe.iter().rposition(|p| p == param);
        // What the probe did not see arrives last, in reverse visit order.
        order.sort_by_key(|param| (last(param).unwrap_or(usize::MAX), usize::MAX - param));
        let count = |param: usize| self.probe.iter().filter(|&&p| p == param).count().max(1);
        let uses = (0..self.layout.specs().len()).map(count).collect();
        self.arrival = Some(self.world.broadcast(&ArrivalOrder { order, uses })?);
        self.adopt_next = true;
        Ok(())
    }

    /// Ends the step: this rank's buckets are complete, and every bucket is
    /// waited for. `mine` is summed over ranks along with them.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn finish(&mut self, mine: Signals) -> Result<Signals, CommError> {
        let signals = self.buckets().finish(mine)?;
        if self.arrival.is_none() {
            self.learn()?;
        }
        Ok(signals)
    }

    /// Begins the next step. The gradients of the last one are gone then.
    pub fn begin(&mut self) {
        match self.arrival.clone().filter(|_| self.adopt_next) {
            Some(arrival) => self.adopt(arrival),
            None => self.buckets().begin(),
        }
    }

    /// The averaged gradient of parameter `param`, after
    /// [`finish`](Self::finish), where it lies in its bucket.
    pub fn gradient(&self, param: usize) -> &[f32] {
        self.buckets.as_ref().map_or(&[], |buckets| buckets.gradient(param))
    }

    /// The same, to be changed there.
    pub fn gradient_mut(&mut self, param: usize) -> &mut [f32] {
        self.buckets().gradient_mut(param)
    }

    /// Times of communication so far.
    pub fn times(&self) -> CommTimes {
        self.buckets.as_ref().map_or_else(CommTimes::default, |buckets| buckets.times)
    }

    fn buckets(&mut self) -> &mut Buckets {
        match &mut self.buckets {
            Some(buckets) => buckets,
            None => unreachable!("buckets are away only inside `backward`"),
        }
    }
}

/// Gives the averages the shape that Burn's optimizers take.
struct Register<'a, 'w> {
    sync: &'a GradientSync<'w>,
    gradients: GradientsParams,
    next: usize,
}

impl ModuleVisitor for Register<'_, '_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.next;
        self.next += 1;
        if param.is_require_grad() {
            let value = param.val();
            let data = TensorData::new(self.sync.gradient(index).to_vec(), value.dims());
            self.gradients.register(param.id, Tensor::<D>::from_data(data, &value.device().inner()));
        }
    }
}
