//! Signals that ask for an end, for a program that is the first process of a container. The programs of `examples`
//! include this file.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::TERM_SIGNALS;

/// Makes SIGTERM, SIGINT and SIGQUIT end process 1, too, with 128 and the signal as the exit code. The kernel drops what
/// process 1 has no handler for; any other process they end by themselves. It is an end as by a kill, at any moment: what
/// is whole on the device then does not depend on it.
///
/// # Errors
/// The system refuses a handler.
pub(crate) fn end_first_process() -> std::io::Result<()> {
    if std::process::id() == 1 {
        for signal in TERM_SIGNALS {
            let always = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_shutdown(*signal, 128 + signal, always)?;
        }
    }
    Ok(())
}
