//! Debug log lines that say why a module runs Burn's own operators instead of the fused operator of this
//! crate.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Logs at level debug that the operator of `module` does not support `what`. Logs each pair of `module` and
/// `what` once. `what` is a plural noun, because the line ends with "are not supported".
pub(crate) fn unsupported(module: &str, what: &str) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if log::log_enabled!(log::Level::Debug) {
        let line = format!("{module} is composed of Burn's operators: {what} are not supported");
        if LOGGED.lock().unwrap_or_else(PoisonError::into_inner).insert(line.clone()) {
            log::debug!("{line}");
        }
    }
}

/// Each reason is a pair: whether the reason holds, and the plural noun for [`unsupported`]. Logs the first
/// reason that holds, and returns true. Returns false if no reason holds.
pub(crate) fn any_unsupported(module: &str, reasons: &[(bool, &str)]) -> bool {
    let reason = reasons.iter().find(|(holds, _)| *holds);
    reason.inspect(|(_, what)| unsupported(module, what)).is_some()
}
