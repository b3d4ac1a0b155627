//! The choice of a GPU for each rank, and the CUDA context of the GPU.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use serde::{Deserialize, Serialize};

use burn_mpi::{CommError, Place, World};

use crate::cuda::{Cuda, Handle};
use crate::library::Nccl;
use crate::refusal::{NoNccl, Refusal, driver_remedy};

/// A GPU that a process sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct VisibleGpu {
    name: String,
    /// The UUID, which no other GPU has.
    id: String,
}

/// The GPUs that a rank sees, and the number of the GPU that the rank was told to use. If `wanted` is `None`,
/// the rank may use any GPU that it sees.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Offer {
    seen: Vec<VisibleGpu>,
    wanted: Option<usize>,
}

/// The GPU of this rank, and its context, which all libraries of the process share.
pub struct Gpu {
    pub cuda: &'static Cuda,
    context: Handle,
    /// Name and number, such as `NVIDIA H200 (GPU 0)`.
    pub name: String,
}

/// Returns `None` if all ranks can use NCCL. Otherwise, returns a rank that cannot use NCCL, and why. The
/// result is the same on all ranks. [`NcclCollective::connect`](crate::NcclCollective::connect) with the same
/// `gpu` returns the same refusal as an error. All ranks must call this function.
///
/// # Errors
/// If ranks cannot exchange which libraries and GPUs they have.
pub fn refusal(world: &World, gpu: Option<usize>) -> Result<Option<Refusal>, CommError> {
    Ok(choose(world, gpu)?.err())
}

/// The CUDA driver, NCCL, and the number of this rank's GPU.
pub type Chosen = (&'static Cuda, &'static Nccl, usize);

/// Loads the libraries and chooses a GPU for each rank: the GPU with the number `wanted`, or the first one
/// that no lower rank of the machine uses. All ranks must call this function. If a rank cannot use NCCL, all
/// ranks return the same refusal.
///
/// Every rank computes the choice for all ranks, from the lists of the GPUs that each rank sees. GPUs are
/// compared by their UUIDs, because containers may see different GPUs of one machine under the same number.
pub fn choose(world: &World, wanted: Option<usize>) -> Result<Result<Chosen, Refusal>, CommError> {
    let mine = Cuda::get().and_then(|cuda| {
        let seen = seen(cuda).map_err(|reason| NoNccl::Driver { reason })?;
        Ok((cuda, Nccl::get()?, seen))
    });
    let offer = mine.as_ref().map(|(_, _, seen)| Offer { seen: seen.clone(), wanted }).map_err(Clone::clone);
    let offers: Vec<Result<Offer, NoNccl>> = world.gather(&offer)?;
    Ok(match (assign(&offers, world.places()), mine) {
        (Ok(numbers), Ok((cuda, nccl, _))) => Ok((cuda, nccl, numbers[world.rank()])),
        (Err((rank, reason)), _) => Err(Refusal { rank, host: world.places()[rank].host.clone(), reason }),
        (Ok(_), Err(reason)) => unreachable!("a rank without a GPU was given one: {reason}"),
    })
}

/// Returns the number of each rank's GPU. If a rank gets no GPU, returns the rank that [`Refusal`] names, and
/// the reason.
fn assign(offers: &[Result<Offer, NoNccl>], places: &[Place]) -> Result<Vec<usize>, (usize, NoNccl)> {
    // If a rank cannot use a library, that is reported first, because a GPU would not help this rank.
    let offers: Vec<&Offer> = offers
        .iter()
        .enumerate()
        .map(|(rank, offer)| offer.as_ref().map_err(|reason| (rank, reason.clone())))
        .collect::<Result<_, _>>()?;
    let mut numbers: Vec<usize> = Vec::new();
    for (rank, Offer { seen, wanted }) in offers.iter().enumerate() {
        let candidates = match *wanted {
            Some(wanted) if wanted >= seen.len() => {
                return Err((rank, NoNccl::GpuNumber { wanted, found: seen.len() }));
            }
            Some(wanted) => wanted..wanted + 1,
            None => 0..seen.len(),
        };
        let same_machine = |other: usize| places[other].boot_id == places[rank].boot_id;
        let user_of = |gpu: &VisibleGpu| {
            (0..rank).find(|&other| same_machine(other) && offers[other].seen[numbers[other]].id == gpu.id)
        };
        let first = candidates.clone().next().ok_or((rank, NoNccl::Gpu))?;
        let Some(free) = candidates.into_iter().find(|&number| user_of(&seen[number]).is_none()) else {
            let gpu = &seen[first];
            let other = user_of(gpu).unwrap_or_default();
            let ranks = (0..places.len()).filter(|&other| same_machine(other));
            let ids: HashSet<&str> =
                ranks.clone().flat_map(|other| &offers[other].seen).map(|gpu| gpu.id.as_str()).collect();
            let reason = NoNccl::SharedGpu {
                gpu: format!("{}, {}", gpu.name, gpu.id),
                other,
                host: places[other].host.clone(),
                gpus: ids.len(),
                ranks: ranks.count(),
            };
            return Err((rank, reason));
        };
        numbers.push(free);
    }
    Ok(numbers)
}

/// Returns the names of the GPUs that this process sees, in the order of their numbers.
///
/// # Errors
/// If NVIDIA's driver cannot be used. The text says why and, if the driver is missing or does not start, what
/// to do. A machine without a GPU is not an error.
pub fn gpus() -> Result<Vec<String>, String> {
    match Cuda::get() {
        Ok(cuda) => Ok(seen(cuda)?.into_iter().map(|gpu| gpu.name).collect()),
        Err(NoNccl::Gpu) => Ok(Vec::new()),
        Err(NoNccl::Driver { reason }) => Err(format!("{reason}; {}", driver_remedy(&reason))),
        Err(other) => Err(other.to_string()),
    }
}

/// Returns the GPUs that this process sees, in the order of their numbers.
fn seen(cuda: &Cuda) -> Result<Vec<VisibleGpu>, String> {
    let mut count = 0;
    // SAFETY: `count` is valid for one int.
    cuda.check(unsafe { (cuda.device_count)(&mut count) }, "cuDeviceGetCount")?;
    (0..count)
        .map(|number| {
            let device = device(cuda, number)?;
            let (mut name, mut id) = ([0 as c_char; 128], [0; 16]);
            // SAFETY: `name` and `id` are valid for the lengths given; the name ends with a zero byte.
            let name = unsafe {
                let length = name.len() as c_int;
                cuda.check((cuda.device_name)(name.as_mut_ptr(), length, device), "cuDeviceGetName")?;
                cuda.check((cuda.device_uuid)(&mut id, device), "cuDeviceGetUuid")?;
                CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
            };
            let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(VisibleGpu { name, id: format!("UUID {id}") })
        })
        .collect()
}

fn device(cuda: &Cuda, number: c_int) -> Result<c_int, String> {
    let mut device = 0;
    // SAFETY: `device` is valid for one int.
    cuda.check(unsafe { (cuda.device)(&mut device, number) }, "cuDeviceGet")?;
    Ok(device)
}

impl Gpu {
    /// Opens the GPU's primary context. It stays open until the process exits, because the operators of Burn
    /// and libtorch use it as well.
    pub fn open(cuda: &'static Cuda, number: usize) -> Result<Self, String> {
        let device = device(cuda, number as c_int)?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is valid for one handle.
        cuda.check(unsafe { (cuda.retain)(&mut context, device) }, "cuDevicePrimaryCtxRetain")?;
        let name = seen(cuda)?.swap_remove(number).name;
        Ok(Self { cuda, context, name: format!("{name} (GPU {number})") })
    }

    /// Makes the context current on this thread until the returned guard is dropped. Dropping the guard makes
    /// the previous context current again. The previous context may belong to another GPU.
    pub fn enter(&self) -> Result<Current, String> {
        // SAFETY: the context was retained and is never released.
        self.cuda.check(unsafe { (self.cuda.push)(self.context) }, "cuCtxPushCurrent")?;
        Ok(Current(self.cuda))
    }
}

/// Keeps a context current until dropped.
#[must_use = "the context is current until this is dropped"]
pub struct Current(&'static Cuda);

impl Drop for Current {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: `popped` is valid for one handle. It is the context that was pushed: contexts
        // are entered and left on one thread, in the order of a stack.
        unsafe { (self.0.pop)(&mut popped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(machines: &[&str]) -> Vec<Place> {
        let place = |(rank, machine): (usize, &&str)| Place {
            host: format!("node-{machine}"),
            boot_id: (*machine).to_owned(),
            ..Place::of_this_process(rank)
        };
        machines.iter().enumerate().map(place).collect()
    }

    fn sees(ids: &[&str], wanted: Option<usize>) -> Result<Offer, NoNccl> {
        let seen = ids.iter().map(|id| VisibleGpu { name: "X".into(), id: (*id).into() }).collect();
        Ok(Offer { seen, wanted })
    }

    #[test]
    fn ranks_get_the_gpus_of_their_machine_in_order() {
        let two = || sees(&["u0", "u1"], None);
        let machines = places(&["a", "a", "b", "b"]);
        assert_eq!(assign(&[two(), two(), two(), two()], &machines), Ok(vec![0, 1, 0, 1]));
        // Ranks 0 and 1 see only one GPU each. Ranks 2 and 3 see the same two GPUs in different orders.
        let own = [sees(&["u0"], None), sees(&["u1"], None), two(), sees(&["u1", "u0"], None)];
        assert_eq!(assign(&own, &machines), Ok(vec![0, 0, 0, 0]));
        let wanted = [sees(&["u0", "u1"], Some(1)), two()];
        assert_eq!(assign(&wanted, &machines[..2]), Ok(vec![1, 0]));
    }

    #[test]
    fn a_rank_without_a_gpu_of_its_own_is_named_with_the_one_that_has_it() {
        let machines = places(&["a", "b", "a"]);
        let one = || sees(&["u0"], None);
        let (rank, reason) = assign(&[one(), one(), one()], &machines).unwrap_err();
        let shared =
            NoNccl::SharedGpu { gpu: "X, u0".into(), other: 0, host: "node-a".into(), gpus: 1, ranks: 2 };
        assert_eq!((rank, reason), (2, shared));
        let (rank, reason) = assign(&[one(), sees(&["u0"], Some(3))], &machines).unwrap_err();
        assert_eq!((rank, reason), (1, NoNccl::GpuNumber { wanted: 3, found: 1 }));
        let missing = NoNccl::Library { reason: "libnccl.so.2: none".into() };
        let offers = [sees(&[], None), Err(missing.clone())];
        assert_eq!(assign(&offers, &machines), Err((1, missing)));
        assert_eq!(assign(&offers[..1], &machines), Err((0, NoNccl::Gpu)));
    }
}
