//! The random layers of a test case's module, and the order in which a micro-batch passes through them.

use super::draw::{Draw, Purpose};

/// Approximate maximum number of values of a module. With 20,000, a case takes a fraction of a second.
const BUDGET: usize = 20_000;
/// Maximum width of a layer.
const NARROW: usize = 8;

/// The layers of a module, and the paths through them.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub index: u64,
    /// Width of the float inputs.
    pub inputs: usize,
    /// Integer inputs are from 0 to below `vocabulary`.
    pub vocabulary: usize,
    /// Number of integer inputs of a sample.
    pub tokens: usize,
    /// Width of the output: regression targets, or classes.
    pub outputs: usize,
    /// True if the loss is cross entropy, false if it is the mean squared error.
    pub classes: bool,
    /// Layers in the order in which Burn visits them, which is not the order of use.
    pub layers: Vec<Layer>,
    /// What a micro-batch passes through before the last layer.
    pub stages: Vec<Stage>,
    /// Index of the last layer, which is always used and always trainable.
    pub head: usize,
    /// Index of a linear layer whose squared weights are added to the loss, and the rule that says for which
    /// micro-batches. The penalty does not depend on samples, and its gradient is ready early in backward.
    pub penalty: Option<(usize, Rule)>,
}

/// A layer, and whether its parameters are frozen.
#[derive(Debug, Clone)]
pub struct Layer {
    pub kind: Kind,
    pub frozen: bool,
}

/// All kinds except `Linear` keep the width.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Linear { inputs: usize, outputs: usize, bias: bool },
    BatchNorm { width: usize },
    LayerNorm { width: usize },
    Scale { width: usize },
    Conv { channels: usize },
    Embedding { width: usize },
}

/// A stage: one of several branches of layers, applied zero or more times.
#[derive(Debug, Clone)]
pub struct Stage {
    /// Branches, as indices of layers. A micro-batch takes one branch.
    pub branches: Vec<Vec<usize>>,
    pub branch: Rule,
    /// The possible repeat counts of the branch, and the rule that selects one.
    pub repeats: Vec<usize>,
    pub repeat: Rule,
    /// If present, the rule that says for which micro-batches to detach the stage's input. Earlier layers
    /// then get no gradient from this stage.
    pub cut: Option<Rule>,
    pub activation: Activation,
}

#[derive(Debug, Clone, Copy)]
pub enum Activation {
    None,
    Tanh,
    Relu,
}

/// What a choice (of a branch, of a repeat count, …) depends on. A `Fixed` choice is the same for all
/// micro-batches.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    Fixed,
    Step,
    Rank,
    StepAndRank,
    MicroBatch,
    /// One choice in the first step, which may determine the order of buckets, and another choice in all
    /// later steps.
    FirstStep,
}

/// Identifies a micro-batch of the case.
#[derive(Debug, Clone, Copy)]
pub struct BatchId {
    pub step: usize,
    pub rank: usize,
    pub micro: usize,
}

const RULES: [Rule; 6] =
    [Rule::Fixed, Rule::Step, Rule::Rank, Rule::StepAndRank, Rule::MicroBatch, Rule::FirstStep];

impl Plan {
    /// Which of `n` alternatives the micro-batch `batch` gets by `rule`. Choices with different `salt` are
    /// independent.
    pub fn pick(&self, rule: Rule, n: usize, batch: BatchId, salt: usize) -> usize {
        let BatchId { step, rank, micro } = batch;
        let at = match rule {
            Rule::Fixed => [0, 0, 0],
            Rule::Step => [step, 0, 0],
            Rule::Rank => [0, rank, 0],
            Rule::StepAndRank => [step, rank, 0],
            Rule::MicroBatch => [step, rank, micro],
            Rule::FirstStep => return usize::from(step > 0) % n,
        };
        let [step, rank, micro] = at.map(|part| part as u16);
        Draw::for_case(self.seed, self.index, Purpose::Route, [step, rank, micro, salt as u16]).below(n)
    }

    pub fn draw(draw: &mut Draw, seed: u64, index: u64) -> Self {
        let inputs = draw.within(1, 12);
        let mut build =
            Build { layers: Vec::new(), values: 0, width: inputs, vocabulary: draw.within(2, 40) };
        let stages = (0..draw.within(0, 6)).map(|_| build.stage(draw)).collect();
        let outputs = draw.within(2, 6);
        let bias = draw.happens(0.8);
        let head = build.add(draw, Kind::Linear { inputs: build.width, outputs, bias });
        build.layers[head].frozen = false;
        // Layers that no micro-batch uses.
        for _ in 0..draw.below(3) {
            let kind = build.kind(draw);
            build.add(draw, kind);
        }
        let linear: Vec<usize> = (0..build.layers.len())
            .filter(|&layer| matches!(build.layers[layer].kind, Kind::Linear { .. }))
            .collect();
        let penalty = draw.happens(0.3).then(|| (draw.one_of(&linear), draw.one_of(&RULES)));
        Self {
            seed,
            index,
            inputs,
            vocabulary: build.vocabulary,
            tokens: draw.within(1, 4),
            outputs,
            classes: draw.happens(0.5),
            layers: build.layers,
            stages,
            head,
            penalty,
        }
        .shuffled(draw)
    }

    /// The same plan, with its layers in a random visit order.
    fn shuffled(mut self, draw: &mut Draw) -> Self {
        if draw.happens(0.4) {
            return self;
        }
        // The layer at `i` moves to `to[i]`.
        let to = draw.permutation(self.layers.len());
        let mut layers = self.layers.clone();
        for (layer, &to) in self.layers.iter().zip(&to) {
            layers[to].clone_from(layer);
        }
        self.layers = layers;
        self.head = to[self.head];
        self.penalty = self.penalty.map(|(layer, rule)| (to[layer], rule));
        for layer in self.stages.iter_mut().flat_map(|stage| stage.branches.iter_mut().flatten()) {
            *layer = to[*layer];
        }
        self
    }
}

/// A plan under construction.
struct Build {
    layers: Vec<Layer>,
    values: usize,
    width: usize,
    vocabulary: usize,
}

impl Build {
    fn stage(&mut self, draw: &mut Draw) -> Stage {
        let before = self.width;
        let keeps = draw.happens(0.6) && (before <= NARROW || self.values < BUDGET / 4);
        let after = if keeps { before } else { self.new_width(draw) };
        let count = draw.one_of(&[1, 1, 1, 2, 3]);
        let branches = (0..count).map(|_| self.branch(draw, before, after)).collect();
        self.width = after;
        let repeats = if before == after && draw.happens(0.6) {
            draw.one_of(&[vec![0, 1], vec![1, 2], vec![2], vec![3], vec![0, 1, 2, 3], vec![2, 1], vec![0, 2]])
        } else {
            vec![1]
        };
        Stage {
            branches,
            branch: draw.one_of(&RULES),
            repeats,
            repeat: draw.one_of(&RULES),
            cut: draw.happens(0.1).then(|| draw.one_of(&RULES)),
            activation: draw.one_of(&[
                Activation::None,
                Activation::Tanh,
                Activation::Tanh,
                Activation::Relu,
            ]),
        }
    }

    /// Adds layers that lead from width `before` to width `after`. A branch may share a layer of an earlier
    /// stage.
    fn branch(&mut self, draw: &mut Draw, before: usize, after: usize) -> Vec<usize> {
        let mut branch = Vec::new();
        self.width = before;
        if before != after || draw.happens(0.6) {
            let kind = Kind::Linear { inputs: before, outputs: after, bias: draw.happens(0.7) };
            branch.push(self.add_or_share(draw, kind));
        }
        self.width = after;
        for _ in 0..draw.below(3) {
            let kind = self.kind(draw);
            branch.push(self.add_or_share(draw, kind));
        }
        branch
    }

    /// A random kind of layer that keeps the width.
    fn kind(&self, draw: &mut Draw) -> Kind {
        let width = self.width;
        match draw.below(6) {
            0 if width > NARROW && self.values > BUDGET / 2 => Kind::Scale { width },
            0 => Kind::Linear { inputs: width, outputs: width, bias: draw.happens(0.7) },
            1 => Kind::BatchNorm { width },
            2 => Kind::LayerNorm { width },
            3 => Kind::Scale { width },
            4 => Kind::Conv { channels: draw.within(1, 4) },
            _ => Kind::Embedding { width },
        }
    }

    fn add_or_share(&mut self, draw: &mut Draw, kind: Kind) -> usize {
        let same: Vec<usize> = (0..self.layers.len()).filter(|&l| self.layers[l].kind == kind).collect();
        if !same.is_empty() && draw.happens(0.4) { draw.one_of(&same) } else { self.add(draw, kind) }
    }

    fn add(&mut self, draw: &mut Draw, kind: Kind) -> usize {
        self.values += match kind {
            Kind::Linear { inputs, outputs, .. } => (inputs + 1) * outputs,
            Kind::Embedding { width } => self.vocabulary * width,
            _ => 0,
        };
        self.layers.push(Layer { kind, frozen: draw.happens(0.08) });
        self.layers.len() - 1
    }

    fn new_width(&self, draw: &mut Draw) -> usize {
        let widths: &[usize] = if self.values < BUDGET / 4 {
            &[1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 33, 64, 80]
        } else {
            &[1, 2, 3, 4, 5, 7, 8]
        };
        draw.one_of(widths)
    }
}
