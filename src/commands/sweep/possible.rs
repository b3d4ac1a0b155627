//! Whether a planned run can be made here.

use std::path::PathBuf;

use crate::commands::gpu;
use crate::launch::{self, LauncherKind, Topology};
use crate::options::RunConfig;
use crate::options::SweepArgs;
use crate::sweep::PlannedRun;

/// Where the host file of the run would be.
pub fn hostfile(run: &PlannedRun, args: &SweepArgs) -> PathBuf {
    args.hostfiles.join(run.topology.to_string())
}

/// The answers so far: looking up an unknown host can take seconds, so each topology and launcher is
/// looked at once.
#[derive(Default)]
pub struct Possible {
    asked: Vec<(Topology, LauncherKind, Option<String>)>,
}

impl Possible {
    /// Why the run is not possible here; `None` if nothing speaks against it.
    pub fn reason_against(
        &mut self,
        run: &PlannedRun,
        config: &RunConfig,
        args: &SweepArgs,
    ) -> Option<String> {
        // Slurm starts ranks on other machines than this one.
        let here = run.launcher != LauncherKind::Srun;
        self.launch(run, args)
            .or_else(|| gpu::impossible(config, here.then_some(run.topology.ranks_per_node)))
    }

    /// A script in the launcher's place knows its own machines.
    fn launch(&mut self, run: &PlannedRun, args: &SweepArgs) -> Option<String> {
        if args.how.script(run.launcher).is_some() {
            return None;
        }
        let asked = self.asked.iter().find(|asked| (asked.0, asked.1) == (run.topology, run.launcher));
        if let Some((_, _, reason)) = asked {
            return reason.clone();
        }
        let reason = launch::impossible(run.topology, run.launcher, &hostfile(run, args));
        self.asked.push((run.topology, run.launcher, reason.clone()));
        reason
    }
}
