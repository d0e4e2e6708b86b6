//! Warnings: problems that are not errors. Each warning is one or more lines on standard error. If the program sets a
//! hook with [`config::set_warning_hook`](crate::config::set_warning_hook), the hook receives it instead. Otherwise, if
//! the program has a subscriber of `tracing`, the warning is an event.

use std::io::Write;
use std::sync::{Arc, PoisonError, RwLock};

use crate::source;

type Hook = Arc<dyn Fn(&str) + Send + Sync>;

// The hook is cloned out of the lock before it is called, because it may emit warnings itself.
static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

pub(crate) fn set_hook(hook: Hook) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(hook);
}

/// Emits a warning with advice, and with the user's line if it is known.
pub(crate) fn warn(message: &str, help: &str) {
    let mut text = message.to_owned();
    if let Some(at) = source::line() {
        text.push_str(&format!("\n  at {}:{}:{}", at.file(), at.line(), at.column()));
    }
    text.push_str(&format!("\n  help: {help}"));
    print("warning: ", &text);
}

/// Emits a warning whose message names the line.
pub(crate) fn warn_anywhere(message: &str, help: &str) {
    print("warning: ", &format!("{message}\n  help: {help}"));
}

/// Logs output that the user requested.
pub(crate) fn log(text: &str) {
    print("", text);
}

fn print(kind: &str, text: &str) {
    let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
    match hook {
        Some(hook) => hook(text),
        None if tracing::dispatcher::has_been_set() => match kind {
            "" => tracing::info!("{text}"),
            _ => tracing::warn!("{text}"),
        },
        // Writing to a closed stream is not an error.
        None => drop(writeln!(std::io::stderr(), "shardax: {kind}{text}")),
    }
}
