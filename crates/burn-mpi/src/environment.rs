//! Prepares the environment variables that `MPI_Init` reads: adds settings for Open MPI, and removes
//! variables of a launcher that no longer runs.
//!
//! A launcher, such as `mpirun`, sets environment variables that tell its ranks where its process manager
//! listens. A shell inside a job inherits these variables, and so does every program that the shell starts.
//! If the process manager no longer answers, `MPI_Init` does not return an error: it prints twenty lines and
//! ends the process.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::RawFd;

use crate::cores::shared_cores;
use crate::{CommError, Launcher};

/// Variables that make `MPI_Init` of Open MPI 4 end the process if no process manager answers. Tested with
/// 4.1.4, each variable alone and all together. Without them, Open MPI ignores the other variables that
/// mpirun, srun, Flux, jsrun and Hydra set, and starts as a world of one.
const OF_OPEN_MPI: [&str; 4] =
    ["OMPI_MCA_orte_local_daemon_uri", "SLURM_STEP_ID", "FLUX_JOB_ID", "JSM_JSRUN_PORT"];

/// Variables that make `MPI_Init` of MPICH end the process if no process manager answers (tested with 4.0.2):
/// the descriptor of the process manager's socket, and the address at which the process manager listens.
const OF_MPICH: [&str; 2] = [MANAGER, PORT];

const MANAGER: &str = "PMI_FD";
const PORT: &str = "PMI_PORT";

/// Prepares the environment for the start of `library` in a process that `launcher` started.
///
/// # Errors
/// [`CommError::Inherited`] if MPI would end this process, and the process may be one of several ranks. In a
/// single process, the variables that would make MPI end it are removed instead.
///
/// # Safety
/// MPI has not started, and no other thread uses the environment.
pub(crate) unsafe fn prepare(launcher: Option<&Launcher>, library: &str) -> Result<(), CommError> {
    let get = |name: &str| std::env::var(name).ok();
    let left = if manager_answers() { Vec::new() } else { left_behind(launcher, library, get)? };
    // A variable that the user has set keeps its value.
    let settings = settings(launcher).into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    // SAFETY: the caller guarantees that no other thread uses the environment.
    unsafe {
        left.into_iter().for_each(|name| std::env::remove_var(name));
        settings.for_each(|(name, value)| std::env::set_var(name, value));
    }
    Ok(())
}

/// Returns the variables to set for Open MPI. Other MPI libraries ignore them.
fn settings(launcher: Option<&Launcher>) -> Vec<(&'static str, &'static str)> {
    // A single process needs no daemon. Without this setting Open MPI starts one, and fails if ssh is
    // missing.
    let mut settings = vec![("OMPI_MCA_ess_singleton_isolated", "1")];
    // If this host has more ranks than cores, a rank that spins while it waits keeps other ranks from running
    // for whole time slices: a 4-byte all-reduce takes milliseconds instead of microseconds.
    if launcher.and_then(|launcher| launcher.local_size).unwrap_or(1) > shared_cores() {
        settings.push(("OMPI_MCA_mpi_yield_when_idle", "1"));
    }
    settings
}

/// Returns the variables that a single process must remove if no process manager answers.
///
/// # Errors
/// [`CommError::Inherited`] if the process may be one of several ranks: these need the process manager.
fn left_behind(
    launcher: Option<&Launcher>,
    library: &str,
    get: impl Fn(&str) -> Option<String>,
) -> Result<Vec<&'static str>, CommError> {
    let names: &[&str] = match library {
        _ if library.starts_with("Open MPI v4") => &OF_OPEN_MPI,
        _ if library.starts_with("MPICH") => &OF_MPICH,
        _ => &[],
    };
    let set: Vec<&str> = names.iter().copied().filter(|name| get(name).is_some()).collect();
    match (launcher, set.first()) {
        (Some(launcher), Some(variable)) if launcher.has_peers() => {
            Err(CommError::Inherited { launcher: launcher.clone(), variable })
        }
        _ => Ok(set),
    }
}

/// Returns whether the process manager that the environment names still exists. It exists if the PMI socket
/// is open, or if a server of PMI or PMIx listens.
fn manager_answers() -> bool {
    let socket = std::env::var(MANAGER).ok().and_then(|text| text.parse::<RawFd>().ok());
    // SAFETY: fcntl accepts any number, and F_GETFD changes nothing. It fails if the number is not an open
    // descriptor.
    let is_open = socket.is_some_and(|socket| unsafe { libc::fcntl(socket, libc::F_GETFD) } != -1);
    is_open
        || std::env::var(PORT).is_ok_and(|address| TcpListener::bind(address).is_err())
        || std::env::vars_os().any(|(name, value)| {
            name.to_string_lossy().starts_with("PMIX_SERVER_URI") && listens(&value.to_string_lossy())
        })
}

/// Returns whether a process of this host listens at the address of a PMIx server, such as
/// `814940160.0;tcp4://127.0.0.1:42213`; true if the address cannot be parsed.
fn listens(uri: &str) -> bool {
    let address = uri.split_once("://").and_then(|(_, address)| address.parse::<SocketAddr>().ok());
    // If this process can bind the address, no other process listens there. Connecting to the address instead
    // would disturb the server.
    address.is_none_or(|address| TcpListener::bind(address).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: &str = "Open MPI v4.1.4";

    /// Returns the variables that a process has to remove.
    fn left(variables: &[(&str, &str)], library: &str) -> Result<Vec<&'static str>, String> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into());
        left_behind(Launcher::from_variables(get).as_ref(), library, get).map_err(|error| error.to_string())
    }

    #[test]
    fn a_process_alone_drops_what_would_end_it_and_one_of_several_is_refused() {
        let step = |tasks| [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", tasks), ("SLURM_STEP_ID", "3")];
        assert_eq!(left(&step("1"), OPEN_MPI), Ok(vec!["SLURM_STEP_ID"]));
        assert_eq!(left(&step("2"), "Open MPI v5.0.3"), Ok(vec![]), "a world of one, which is refused later");
        let line = left(&step("2"), OPEN_MPI).unwrap_err();
        for word in ["Slurm's srun", "SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID", "--mpi=pmix"]
        {
            assert!(line.contains(word), "{line} lacks {word}");
        }
        let hydra = |size| [("PMI_RANK", "0"), ("PMI_SIZE", size), ("PMI_FD", "99")];
        assert_eq!(left(&hydra("1"), "MPICH 4.0.2"), Ok(vec!["PMI_FD"]));
        assert!(left(&hydra("2"), "MPICH 4.0.2").unwrap_err().contains("unset ${!PMI_@}"));
        let batch = [("PMIX_RANK", "0"), ("SLURM_PROCID", "0"), ("SLURM_STEP_ID", "3")];
        assert!(left(&batch, OPEN_MPI).unwrap_err().ends_with("unset ${!PMIX_@} ${!SLURM_@}"));
        let port = [("PMI_ID", "0"), ("PMI_PORT", "a:7")];
        assert!(left(&port, "MPICH 4.0.2").unwrap_err().contains("PMI_PORT"));
        assert_eq!(left(&hydra("2"), OPEN_MPI), Ok(vec![]), "a world of one, which is refused later");
        assert_eq!(left(&[("FLUX_JOB_ID", "1"), ("JSM_JSRUN_PORT", "1")], OPEN_MPI).unwrap().len(), 2);
    }

    #[test]
    fn a_server_is_there_while_it_listens() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let uri = format!("814940160.0;tcp4://{}", server.local_addr().expect("its address"));
        assert!(listens(&uri) && listens("pmix-server:12:/tmp/socket"));
        drop(server);
        assert!(!listens(&uri));
    }

    #[test]
    fn ranks_yield_where_cores_lack() {
        let settings_of = |ranks: usize| {
            let get = |name: &str| match name {
                "MPI_LOCALNRANKS" => Some(ranks.to_string()),
                _ => Some("0".to_owned()).filter(|_| name == "PMI_RANK"),
            };
            settings(Launcher::from_variables(get).as_ref()).len()
        };
        assert_eq!((settings_of(1), settings_of(shared_cores()), settings_of(shared_cores() + 1)), (1, 1, 2));
    }
}
