//! Reaches another machine as mpirun does, and asks which copy of this program it has, and how many cores.
//!
//! mpirun starts processes on other machines by a command, its agent: usually ssh. This module uses the same
//! agent with the same settings, so it finds the same problems, before mpirun reports them in many lines or
//! after minutes.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use run_record::files;
use rustix::process::{Pid, Signal, kill_process_group};

use super::command::{find, is_executable, line, without_user};
use super::job::TICK;
use super::{MpiFlavour, quoted};
use crate::StopRequest;

/// How long an agent may take to answer. This is longer than ssh's `ConnectTimeout`, because the login after
/// the connection takes more time.
const DEADLINE: Duration = Duration::from_secs(30);

/// Time after which a log line says what this process waits for.
const SOON: Duration = Duration::from_secs(5);

/// How long to wait for the answers of other machines.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    deadline: Duration,
    stop: &'a StopRequest,
}

impl<'a> Patience<'a> {
    pub(super) fn until(stop: &'a StopRequest) -> Self {
        Self { deadline: DEADLINE, stop }
    }

    /// Waits for the answer. Returns `None` if the deadline or a stop request comes first. A log line says
    /// that this process waits for `what`.
    fn wait<T>(self, answer: &Receiver<T>, what: &str) -> Option<T> {
        let (start, mut told) = (Instant::now(), false);
        loop {
            match answer.recv_timeout(TICK) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout)
                    if self.stop.signal().is_none() && start.elapsed() < self.deadline => {}
                Err(_) => return None,
            }
            if start.elapsed() > SOON && !std::mem::replace(&mut told, true) {
                log::info!("waiting for {what}, at most {} s", self.deadline.as_secs());
            }
        }
    }

    fn late(self) -> String {
        format!("no answer within {} s", self.deadline.as_secs())
    }
}

/// Looks up the addresses of `host`, an entry of a host file such as `alpha` or `me@alpha`.
///
/// # Errors
/// If the host's name has no address, or if the deadline or a stop request comes before an answer.
pub(super) fn addresses(host: &str, patience: Patience<'_>) -> Result<Vec<IpAddr>, String> {
    let name = without_user(host).to_owned();
    let what = format!("the address of {name}");
    let (sender, answer) = channel();
    // A lookup takes as long as the settings of the resolver say, and cannot be cancelled.
    thread::spawn(move || sender.send((name.as_str(), 0).to_socket_addrs()));
    match patience.wait(&answer, &what) {
        Some(Ok(addresses)) => Ok(addresses.map(|address| address.ip()).collect()),
        Some(Err(error)) => {
            Err(error.to_string().trim_start_matches("failed to lookup address information: ").to_owned())
        }
        None => Err(patience.late()),
    }
}

/// The command by which mpirun starts a process on another machine: `ssh`, unless mpirun's settings name
/// another command.
#[derive(Debug)]
pub(super) struct Agent {
    words: Vec<String>,
    is_ssh: bool,
}

impl Agent {
    /// Finds the agent of this MPI's mpirun, with the arguments that mpirun's settings add.
    ///
    /// # Errors
    /// If no agent is installed.
    pub(super) fn for_mpi(mpi: MpiFlavour) -> anyhow::Result<Self> {
        let (agents, more) = match mpi {
            MpiFlavour::OpenMpi => {
                // ompi_info reads the environment and the files of settings, as mpirun of Open MPI 4 does.
                let output = Command::new("ompi_info")
                    .args(["--param", "plm", "rsh", "--level", "9", "--parsable"])
                    .stdin(Stdio::null())
                    .output();
                let all = output.map_or_else(|_| String::new(), |output| in_text(&output.stdout));
                let of_4 = |name: &str| {
                    let start = format!("mca:plm:rsh:param:{name}:value:");
                    all.lines()
                        .find_map(|line| line.strip_prefix(&start))
                        .map(|value| value.trim_matches('"').to_owned())
                };
                let of_5 = |name: &str| {
                    ["PRTE_MCA_plm_ssh_", "OMPI_MCA_plm_ssh_", "OMPI_MCA_plm_rsh_"]
                        .into_iter()
                        .find_map(|start| std::env::var(format!("{start}{name}")).ok())
                };
                let parameter = |name: &str| of_4(&format!("plm_rsh_{name}")).or_else(|| of_5(name));
                (parameter("agent"), parameter("args"))
            }
            MpiFlavour::Mpich => {
                let variable = |name: &str| std::env::var(name).ok();
                (
                    variable("HYDRA_LAUNCHER_EXEC").or_else(|| variable("HYDRA_LAUNCHER")),
                    variable("HYDRA_LAUNCHER_EXTRA_ARGS"),
                )
            }
        };
        let agents = agents.unwrap_or_else(|| DEFAULT.to_owned());
        let words = first_installed(&agents).ok_or_else(|| not_installed(mpi, &agents))?;
        Ok(Self::with(words, &more.unwrap_or_default()))
    }

    fn with(mut words: Vec<String>, more: &str) -> Self {
        words.extend(more.split_whitespace().map(ToOwned::to_owned));
        let is_ssh = Path::new(&words[0]).file_name().is_some_and(|name| name == "ssh");
        if is_ssh {
            // ssh uses the first value of an option, so the user's own options win.
            words.extend(["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"].map(ToOwned::to_owned));
        }
        Self { words, is_ssh }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        command
    }

    /// Returns whether the agent may reach a host whose name has no address here. For ssh, `~/.ssh/config`
    /// may have an address or a proxy for the host. For any other agent, the answer is always true.
    pub(super) fn may_know(&self, host: &str, patience: Patience<'_>) -> bool {
        if !self.is_ssh {
            return true;
        }
        // `ssh -G` prints the settings for a host, and does not connect.
        let mut command = self.command();
        command.arg("-G").arg(host);
        let output = output(command, &format!("ssh -G {host}"), patience).ok().flatten();
        let settings = output.map_or_else(String::new, |output| in_text(&output.stdout));
        settings.lines().filter_map(|line| line.split_once(' ')).any(|(name, value)| match name {
            // The host's own name has been looked up already, without success.
            "hostname" => value != without_user(host) && addresses(value, patience).is_ok(),
            "proxyjump" | "proxycommand" => value != "none",
            _ => false,
        })
    }

    /// Asks `host` for its number of cores, and for the number of CPUs that a job may use there. Checks that
    /// `host` has the same binary at the same path.
    ///
    /// # Errors
    /// If `host` cannot be reached, has no such binary or a different one, or cannot start it.
    pub(super) fn ask(
        &self,
        host: &str,
        program: &Path,
        patience: Patience<'_>,
    ) -> anyhow::Result<[usize; 2]> {
        let program = std::path::absolute(program).unwrap_or_else(|_| program.to_owned());
        let path = program.display();
        let agent = line(&self.words);
        let mut command = self.command();
        command.arg(host).arg(script(&path.to_string()));
        let output =
            output(command, host, patience).map_err(|reason| anyhow!("cannot start {agent}: {reason}"))?;
        let (stdout, errors) = output.map_or_else(
            || (String::new(), patience.late()),
            |output| (in_text(&output.stdout), in_text(&output.stderr)),
        );
        let reason = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no answer").trim();
        let there = said(&stdout, DIGEST).and_then(|said| said.split_whitespace().next()).with_context(|| {
            if self.is_ssh {
                format!(
                    "cannot ssh to {host}: {reason}; mpirun starts ranks there over ssh without a password: \
                     try `ssh {host} true`, then ssh-copy-id {host}"
                )
            } else {
                format!(
                    "cannot reach {host}: {reason}; mpirun starts ranks there with {agent}: try `{agent} {host} true`"
                )
            }
        })?;
        let here = std::fs::read(&program).map(|bytes| files::sha256(&bytes));
        let what = match here {
            _ if there == "none" => "no",
            Ok(here) if here != there => "a different",
            _ => "",
        };
        ensure!(what.is_empty(), "{host} has {what} {path}; copy it with make deploy HOSTS={host}");
        let mut counts = said(&stdout, super::CORES).unwrap_or_default().split_whitespace().map(str::parse);
        match (counts.next(), counts.next()) {
            (Some(Ok(cores)), Some(Ok(cpus))) => Ok([cores, cpus]),
            _ => bail!("{path} does not start on {host}: {reason}; see make deploy HOSTS={host}"),
        }
    }
}

/// Runs `command`, and returns its output. Kills it and returns `None` if the deadline or a stop request
/// comes first.
pub(super) fn output(mut command: Command, what: &str, patience: Patience<'_>) -> io::Result<Option<Output>> {
    // The command runs in a separate process group, so that the processes of a script are killed with it.
    let job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()?;
    let (group, (sender, answer)) = (Pid::from_child(&job), channel());
    thread::spawn(move || sender.send(job.wait_with_output()));
    let output = patience.wait(&answer, what);
    if output.is_none() {
        // Fails if the command has just ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
    output.transpose()
}

/// The agents that mpirun of both MPIs tries, in this order, if no setting names an agent.
const DEFAULT: &str = "ssh : rsh";

/// Returns the error for the case that none of `agents` is installed.
fn not_installed(mpi: MpiFlavour, agents: &str) -> anyhow::Error {
    if agents == DEFAULT {
        return anyhow!(
            "mpirun starts ranks on other machines by ssh or rsh, but neither is installed: install openssh-client"
        );
    }
    let setting = match mpi {
        MpiFlavour::OpenMpi => "plm_rsh_agent (OMPI_MCA_plm_rsh_agent, or a file openmpi-mca-params.conf)",
        MpiFlavour::Mpich => "HYDRA_LAUNCHER_EXEC or HYDRA_LAUNCHER",
    };
    anyhow!(
        "{} is not an installed program, but {setting} tells mpirun to start ranks on other machines with it: correct \
         the setting, or unset it to use ssh",
        quoted(agents)
    )
}

/// Returns the words of the first command in `agents` that is installed; `None` if no command is installed.
/// Colons separate the commands.
fn first_installed(agents: &str) -> Option<Vec<String>> {
    let commands = agents.split(':').map(|agent| agent.split_whitespace().map(ToOwned::to_owned).collect());
    commands.into_iter().find(|words: &Vec<String>| {
        words.first().and_then(|word| find(word)).is_some_and(|file| is_executable(&file))
    })
}

/// Word that the command of [`script`] prints before the digest of the program.
const DIGEST: &str = "mpiburn-digest";

/// Returns the command that the agent runs on another machine, in any login shell. The command prints the
/// digest of the program at `path`, and then runs the program, which prints its counts of cores and CPUs.
/// Between single quotes, sh, fish and tcsh read everything alike except for quotes, `!` and pairs of
/// backslashes. The path contains none of these, because its special characters are written as octal numbers.
fn script(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let letter = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!(r"\{byte:03o}") };
    let path: String = path.bytes().map(letter).collect();
    format!(
        "sh -c 'p=$(printf \"{path}\"); test -x \"$p\" || {{ echo {DIGEST} none; exit; }}; \
         echo {DIGEST} $(sha256sum < \"$p\"); exec \"$p\" cores'"
    )
}

/// Returns the text that follows the last `word` on the same line. Start-up files of the login shell may
/// print anything before this text.
fn said<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    text.rsplit_once(word).map(|(_, rest)| rest.lines().next().unwrap_or_default())
}

fn in_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_first_agent_that_is_installed_gets_its_arguments_and_those_of_mpirun() {
        let found =
            |agents, more| first_installed(agents).map(|words| Agent::with(words, more).words.join(" "));
        assert_eq!(found("mpiburn-none -x : sh -e :ssh", "-p 2222").as_deref(), Some("sh -e -p 2222"));
        assert_eq!(found("mpiburn-none : ", ""), None);
        let ssh = Agent::with(vec!["/usr/bin/ssh".into(), "-q".into()], "-p 22");
        assert_eq!(ssh.words.join(" "), "/usr/bin/ssh -q -p 22 -o BatchMode=yes -o ConnectTimeout=5");
    }

    /// Runs each installed shell as a login shell that prints something at its start.
    #[test]
    fn any_login_shell_answers_of_any_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's a \"pro\\gram\" 100% $HOME `x` ü!");
        program(&path, &format!("#!/bin/sh\ntest \"$1\" = cores && echo {} 3 6", super::super::CORES));
        let shells = ["sh", "bash", "dash", "zsh", "fish", "tcsh", "csh", "ksh"].map(ToOwned::to_owned);
        let shells: Vec<String> = shells.into_iter().filter(|shell| find(shell).is_some()).collect();
        assert!(shells.len() > 1, "{shells:?}");
        for shell in shells {
            let agent = folder.path().join("agent");
            program(&agent, &format!("#!/bin/sh\nprintf 'Welcome to '\nshift\nexec {shell} -c \"$1\"\n"));
            let agent = Agent::with(vec![agent.display().to_string()], "");
            let stop = StopRequest::default();
            let ask = |path| agent.ask("alpha", path, Patience::until(&stop));
            assert_eq!(ask(&path).unwrap(), [3, 6], "{shell}");
            let error = ask(Path::new("/no'where")).unwrap_err().to_string();
            assert_eq!(error, "alpha has no /no'where; copy it with make deploy HOSTS=alpha", "{shell}");
        }
        let stop = StopRequest::default();
        let asked = |agent: &str, path| {
            let agent = Agent::with(vec![agent.into()], "");
            agent.ask("alpha", path, Patience::until(&stop)).unwrap_err().to_string()
        };
        let error = asked("false", &path);
        assert!(error.starts_with("cannot reach alpha: ") && error.contains("`false alpha true`"), "{error}");
        let other = folder.path().join("other");
        program(&other, &format!("#!/bin/sh\necho {DIGEST} 00"));
        let error = asked(&other.display().to_string(), &path);
        assert!(error.starts_with("alpha has a different "), "{error}");
        program(&path, "#!/bin/sh\necho no libmpi >&2\nexit 1");
        program(&other, "#!/bin/sh\nexec sh -c \"$2\"");
        let error = asked(&other.display().to_string(), &path);
        assert!(error.contains(" on alpha: no libmpi"), "{error}");
    }

    #[test]
    fn an_agent_that_hangs_ends_with_the_deadline_or_the_signal() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ssh");
        program(&file, "#!/bin/sh\nexec sleep 3600\n");
        let (agent, stop) = (Agent::with(vec![file.display().to_string()], ""), StopRequest::default());
        let short = Patience { deadline: Duration::from_millis(50), stop: &stop };
        assert!(!agent.may_know("alpha", short));
        let error = agent.ask("alpha", Path::new("/p"), short).unwrap_err().to_string();
        assert!(error.starts_with("cannot ssh to alpha: ") && error.contains(" 0 s"), "{error}");
        let stopped = StopRequest::default();
        stopped.request(15);
        agent.ask("alpha", Path::new("/p"), Patience::until(&stopped)).unwrap_err();
    }

    #[test]
    fn a_lookup_ends_with_the_deadline() {
        let stop = StopRequest::default();
        let none = Patience { deadline: Duration::ZERO, stop: &stop };
        let (sender, answer) = channel::<()>();
        assert_eq!(none.wait(&answer, "an answer"), None);
        drop(sender);
        assert_eq!(
            addresses("me@127.0.0.1", Patience::until(&stop)).unwrap(),
            [IpAddr::from([127, 0, 0, 1])]
        );
    }

    #[test]
    fn a_missing_agent_is_named_with_its_setting() {
        let line = |agents| not_installed(MpiFlavour::OpenMpi, agents).to_string();
        assert!(line(DEFAULT).ends_with("install openssh-client"), "{}", line(DEFAULT));
        let named = line("/opt/bin/ssh-none");
        assert!(named.starts_with("/opt/bin/ssh-none is not") && named.contains("plm_rsh_agent"), "{named}");
    }

    #[test]
    fn a_name_of_the_settings_of_ssh_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        std::fs::write(&config, "Host gpu\n HostName localhost\nHost far\n ProxyJump localhost\n").unwrap();
        let agent = Agent::with(vec!["ssh".into()], &format!("-F {}", config.display()));
        let (stop, hosts) = (StopRequest::default(), ["gpu", "me@gpu", "far", "no-such-host.invalid"]);
        let known = hosts.map(|host| agent.may_know(host, Patience::until(&stop)));
        assert_eq!(known, [true, true, true, false]);
        let other = Agent::with(vec!["sh".into()], "");
        assert!(other.may_know("no-such-host.invalid", Patience::until(&stop)));
    }
}
