//! Checks that tensors of every type are broadcast and compared, and that float buffers are averaged.

use std::error::Error;

use burn::module::{Module, Param, ParamId};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use burn_mpi::{
    Backend, GradientSync, SyncOptions, Transport, World, broadcast_module, check_equal_weights, connect,
};

/// Floats of four types, a buffer, integers of every size, and a boolean mask.
#[derive(Module, Debug)]
struct Types {
    floats: Vec<Param<Tensor<1>>>,
    scale: Param<Tensor<1>>,
    ints: Vec<Param<Tensor<2, Int>>>,
    mask: Param<Tensor<1, Bool>>,
    out: Linear,
}

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
const INTS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Makes tensors filled with `value`. The tensor number `odd`, in visit order, differs in one element.
fn types(value: usize, odd: Option<usize>, device: &Device) -> Types {
    let values = |number: usize| {
        let second = if odd == Some(number) { value + 1 } else { value };
        TensorData::from([value as i32 % 100, second as i32 % 100])
    };
    let float = |number: usize, dtype: DType| {
        let data = values(number).convert_dtype(dtype);
        Tensor::<1>::from_data(data, (device, dtype))
    };
    let int = |number: usize, dtype: DType| {
        let data = TensorData::new(values(number).iter::<i64>().collect(), [1, 2]).convert_dtype(dtype);
        Param::initialized(ParamId::new(), Tensor::<2, Int>::from_data(data, (device, dtype)))
    };
    let mask = [value.is_multiple_of(2), (value + usize::from(odd == Some(13))).is_multiple_of(2)];
    Types {
        floats: (0..4).map(|number| Param::from_tensor(float(number, FLOATS[number]))).collect(),
        scale: Param::initialized(ParamId::new(), float(4, DType::F64).set_require_grad(false)),
        ints: (0..8).map(|at| int(5 + at, INTS[at])).collect(),
        mask: Param::initialized(ParamId::new(), Tensor::from_data(mask, device)),
        // Constant weights: ranks that are threads share Burn's random generator.
        out: LinearConfig::new(2, 1).with_initializer(Initializer::Ones).init(device),
    }
}

/// Returns the names of the tensors in visit order, as in error messages.
fn names() -> Vec<String> {
    let floats = (0..4).map(|at| format!("the parameter floats.{at}"));
    let ints = (0..8).map(|at| format!("the integer parameter ints.{at}"));
    let scale = std::iter::once("the buffer scale".to_owned());
    floats.chain(scale).chain(ints).chain(std::iter::once("the boolean parameter mask".to_owned())).collect()
}

pub fn check(world: &World, backend: Backend) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let names = names();
    // Every tensor differs between ranks. After the broadcast, all equal rank 0's.
    let module = broadcast_module(world, types(7 + 3 * world.rank(), None, &device))?;
    check_equal_weights(world, &module)?;
    let expected = types(7, None, &device);
    for (found, expected) in module.ints.iter().zip(&expected.ints) {
        assert_eq!(found.val().into_data(), expected.val().into_data());
    }
    for (found, expected) in module.floats.iter().zip(&expected.floats) {
        assert_eq!(found.val().into_data(), expected.val().into_data());
        assert!(found.is_require_grad());
    }
    assert_eq!(module.scale.val().into_data(), expected.scale.val().into_data());
    assert!(!module.scale.is_require_grad());
    assert_eq!(module.mask.val().into_data(), expected.mask.val().into_data());

    // One element of one tensor differs on the last rank only.
    let last = world.size() - 1;
    for (number, name) in names.iter().enumerate() {
        let odd = (world.rank() == last && last > 0).then_some(number);
        let outcome = check_equal_weights(world, &types(7, odd, &device));
        match &outcome {
            Ok(()) if last == 0 => {}
            Err(error) => {
                let line = error.to_string();
                assert!(
                    line.starts_with(name) && line.contains(&format!("rank {last} on ")),
                    "{name}: {line}"
                );
            }
            Ok(()) => return Err(format!("{name}: not compared").into()),
        }
    }

    // One rank has a different type.
    let mut other = types(7, None, &device);
    if world.rank() == last && last > 0 {
        let ints = Tensor::from_data([[7, 7]], (&device, DType::I16));
        other.ints[3] = Param::initialized(ParamId::new(), ints);
    }
    match broadcast_module(world, other) {
        Ok(_) if last == 0 => {}
        Err(error) if error.to_string().contains("has ints.3 [1, 2] I16, rank 0 has ints.3 [1, 2] I64") => {}
        outcome => return Err(format!("another type: {outcome:?}").into()),
    }

    means(world, backend, &device)
}

/// Checks that float buffers of any type are averaged, and that integers and booleans are unchanged.
fn means(world: &World, backend: Backend, device: &Device) -> Result<(), Box<dyn Error>> {
    let collective = connect(world, backend, &Transport::default())?;
    let trained = LinearConfig::new(2, 1).init(device);
    let sync = GradientSync::of_module(world, collective, &trained, SyncOptions::default());
    let module = sync.average_buffers(types(7 + 2 * world.rank(), None, device))?;
    let mean = 7.0 + (world.size() - 1) as f64;
    assert_eq!(module.scale.val().into_data(), TensorData::from([mean, mean]));
    assert_eq!(module.ints[3].val().into_data(), TensorData::from([[7 + 2 * world.rank() as i64; 2]]));
    Ok(())
}
