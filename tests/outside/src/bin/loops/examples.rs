//! burn-mpi's examples, compiled from its folder. `Example` gives the checks access to their parts.

use std::error::Error;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_mpi::World;

use self::char_gpt::Network;

#[allow(dead_code, reason = "an example's main, and options that are not set here")]
#[path = "../../../../../examples/char_gpt/main.rs"]
mod char_gpt;
#[allow(dead_code, reason = "an example's main, and options that are not set here")]
#[path = "../../../../../crates/burn-mpi/examples/own_loop.rs"]
pub mod own_loop;
#[allow(dead_code, reason = "an example's main, and options that are not set here")]
#[path = "../../../../../crates/burn-mpi/examples/regression.rs"]
pub mod regression;

/// An example: its data, its model and its loop.
pub trait Example {
    type Item: 'static;
    type Net: Module;

    /// The number of samples in a rank's batch.
    const BATCH: usize;
    const WIDTH: usize;

    fn data(samples: usize) -> Box<dyn Dataset<Self::Item>>;
    fn net(device: &Device) -> Self::Net;
    fn loss(net: &Self::Net, items: &[Self::Item], device: &Device) -> Tensor<1>;
    fn train(
        world: &World,
        data: Box<dyn Dataset<Self::Item>>,
        width: usize,
    ) -> Result<Self::Net, Box<dyn Error>>;
}

pub struct OwnLoop;

impl Example for OwnLoop {
    type Item = own_loop::Point;
    type Net = own_loop::Net;

    const BATCH: usize = 16;
    const WIDTH: usize = 8;

    fn data(samples: usize) -> Box<dyn Dataset<Self::Item>> {
        Box::new(own_loop::points(samples))
    }

    fn net(device: &Device) -> Self::Net {
        own_loop::Net::new(Self::WIDTH, device)
    }

    fn loss(net: &Self::Net, items: &[Self::Item], device: &Device) -> Tensor<1> {
        net.loss(items, device)
    }

    fn train(
        world: &World,
        data: Box<dyn Dataset<Self::Item>>,
        width: usize,
    ) -> Result<Self::Net, Box<dyn Error>> {
        own_loop::train(world, data, width)
    }
}

pub struct Regression;

impl Example for Regression {
    type Item = regression::Sample;
    type Net = regression::Net;

    const BATCH: usize = 32;
    const WIDTH: usize = 8;

    fn data(samples: usize) -> Box<dyn Dataset<Self::Item>> {
        Box::new(regression::Samples { first: 0, count: samples })
    }

    fn net(device: &Device) -> Self::Net {
        regression::Net::new(Self::WIDTH, device)
    }

    fn loss(net: &Self::Net, items: &[Self::Item], device: &Device) -> Tensor<1> {
        net.loss(items, device)
    }

    fn train(
        world: &World,
        data: Box<dyn Dataset<Self::Item>>,
        width: usize,
    ) -> Result<Self::Net, Box<dyn Error>> {
        regression::train(world, data, regression::Samples { first: 5000, count: 7 }, width)
    }
}

/// The example char_gpt, with its transformer or its LSTM. Both are made of fused modules.
pub struct Characters<const LSTM: bool>;

impl<const LSTM: bool> Characters<LSTM> {
    fn options(width: usize) -> char_gpt::Options {
        let small =
            char_gpt::Options { layers: 2, heads: 2, batch: Self::BATCH, tokens: 6, ..Default::default() };
        char_gpt::Options { width, lstm: LSTM, steps: 7, ..small }
    }
}

impl<const LSTM: bool> Example for Characters<LSTM> {
    type Item = Vec<u8>;
    type Net = char_gpt::fused::Characters;

    const BATCH: usize = 3;
    const WIDTH: usize = 8;

    fn data(samples: usize) -> Box<dyn Dataset<Self::Item>> {
        let tokens = Self::options(Self::WIDTH).tokens;
        let mut text = char_gpt::sentences(samples * tokens + 1);
        text.truncate(samples * tokens + 1);
        Box::new(char_gpt::Windows { text, tokens })
    }

    fn net(device: &Device) -> Self::Net {
        Self::Net::new(&Self::options(Self::WIDTH), device)
    }

    fn loss(net: &Self::Net, items: &[Self::Item], device: &Device) -> Tensor<1> {
        net.loss(items, device)
    }

    fn train(
        world: &World,
        data: Box<dyn Dataset<Self::Item>>,
        width: usize,
    ) -> Result<Self::Net, Box<dyn Error>> {
        char_gpt::train(world, data, &Self::options(width))
    }
}
