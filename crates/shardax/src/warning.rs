//! Warnings: what a user should know although nothing failed. A line or more on standard error each, unless the program
//! takes them over with [`config::set_warning_hook`](crate::config::set_warning_hook).

use std::io::Write;
use std::sync::{Arc, PoisonError, RwLock};

use crate::source;

type Hook = Arc<dyn Fn(&str) + Send + Sync>;

static HOOK: RwLock<Option<Hook>> = RwLock::new(None);

pub(crate) fn set_hook(hook: Hook) {
    *HOOK.write().unwrap_or_else(PoisonError::into_inner) = Some(hook);
}

/// Warns, with the user's line where it is known, and how what is warned of is avoided.
pub(crate) fn warn(message: &str, help: &str) {
    let mut text = message.to_owned();
    if let Some(at) = source::line() {
        text.push_str(&format!("\n  at {}:{}:{}", at.file(), at.line(), at.column()));
    }
    text.push_str(&format!("\n  help: {help}"));
    say("warning: ", &text);
}

/// Tells what the user asked to be told.
pub(crate) fn log(text: &str) {
    say("", text);
}

fn say(kind: &str, text: &str) {
    let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
    match hook {
        Some(hook) => hook(text),
        // A closed stream is no reason to stop.
        None => drop(writeln!(std::io::stderr(), "shardax: {kind}{text}")),
    }
}
