//! Debug lines that say why a module is composed of Burn's operators.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Logs at level debug that the operator of `module` does not support `what`, once for each module and
/// reason. `what` is a plural: the line ends with "are not supported".
pub(crate) fn unsupported(module: &str, what: &str) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if log::log_enabled!(log::Level::Debug) {
        let line = format!("{module} is composed of Burn's operators: {what} are not supported");
        if LOGGED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            log::debug!("{line}");
        }
    }
}

/// Calls [`unsupported`] with the first reason that holds, and returns whether a reason holds.
pub(crate) fn any_unsupported(module: &str, reasons: &[(bool, &str)]) -> bool {
    let reason = reasons.iter().find(|(holds, _)| *holds);
    reason.inspect(|(_, what)| unsupported(module, what)).is_some()
}
