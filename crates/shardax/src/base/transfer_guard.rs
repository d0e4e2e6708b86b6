//! Guards that log or reject transfers between the host and devices.

use std::fmt::Display;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use crate::choice::{Choice, IntoChoice, NamedOption};
use crate::error::{Result, err};
use crate::local::{Guard, Guarded, GuardedKey};
use crate::warning;

/// The treatment of transfers; see [`transfer_guard`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransferGuardLevel {
    /// Transfers run.
    #[default]
    Allow,
    /// Implicit transfers are logged, like a warning.
    Log,
    /// Implicit transfers are errors.
    Disallow,
    /// All transfers are logged.
    LogExplicit,
    /// All transfers are errors.
    DisallowExplicit,
}

use TransferGuardLevel::{Allow, Disallow, DisallowExplicit, Log, LogExplicit};

const LEVELS: [TransferGuardLevel; 5] = [Allow, Log, Disallow, LogExplicit, DisallowExplicit];

impl NamedOption for TransferGuardLevel {
    const KIND: &'static str = "level";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("allow", Allow),
        ("log", Log),
        ("disallow", Disallow),
        ("log_explicit", LogExplicit),
        ("disallow_explicit", DisallowExplicit),
    ];
}

impl TransferGuardLevel {
    /// Parses one of JAX's names: `allow`, `log`, `disallow`, `log_explicit` or `disallow_explicit`.
    ///
    /// # Errors
    /// Returns an error for any other name.
    pub fn from_name(name: &str) -> Result<Self> {
        let named = Self::NAMES.iter().find(|(other, _)| *other == name);
        named.map(|(_, level)| *level).ok_or_else(|| {
            err!(
                Value,
                "a transfer guard must be one of allow, log, disallow, log_explicit, disallow_explicit, got {name:?}"
            )
            .help("`disallow` rejects implicit transfers, `disallow_explicit` all")
        })
    }
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToDevice,
    DeviceToHost,
}

use Direction::{DeviceToDevice, DeviceToHost, HostToDevice};

/// The level of transfers in a direction, or a text that names none; `None` is every direction.
type Rule = (Option<Direction>, Choice<TransferGuardLevel>);

/// The number of guards of all threads plus the number of directions that the process restricts. If it is 0, the check
/// of a transfer costs only one load.
static GUARDS: AtomicUsize = AtomicUsize::new(0);
/// The levels of the process, by direction.
static PROCESS: [AtomicU8; 3] = [const { AtomicU8::new(0) }; 3];

// A guard's rule has priority over the levels of the process, and holds on one thread only.
thread_local! {
    static THREAD: Guarded<Rule> = const { Guarded::new() };
}

/// Restores the previous level when dropped.
#[must_use = "the level holds only while the guard lives"]
#[derive(Debug)]
pub struct TransferGuard {
    _guard: Guard<Rule>,
}

impl Drop for TransferGuard {
    fn drop(&mut self) {
        GUARDS.fetch_sub(1, Relaxed);
    }
}

fn guard(direction: Option<Direction>, level: Choice<TransferGuardLevel>) -> TransferGuard {
    GUARDS.fetch_add(1, Relaxed);
    TransferGuard { _guard: THREAD.guard((direction, level)) }
}

/// Sets the treatment of transfers on this thread until the guard is dropped (JAX's context manager of that name). It
/// applies to transfers from the host to a device, between devices, and from a device to the host.
///
/// Transfers by [`device_put`](crate::device_put), [`device_get`](crate::device_get), [`array`](crate::array()) and
/// `Array`'s constructors are explicit. Transfers are implicit if a plain number becomes an operand, if an argument of
/// a compiled function is on other devices than the function, or if values are read:
/// [`Array::item`](crate::Array::item), [`Array::to_vec`](crate::Array::to_vec), printing. They are checked on every
/// platform, so that a program tested on CPU has no hidden transfer on an accelerator.
///
/// The level is a [`TransferGuardLevel`] or JAX's text for one. While the guard of an unknown text lives, transfers fail
/// with an error that lists the names.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::transfer_guard;
/// let x = ones([2]);
/// let _guard = transfer_guard("disallow");
/// let read = x.to_vec::<f32>().err().map(|e| e.message().to_owned());
/// assert_eq!(read.as_deref(), Some("Disallowed device-to-host transfer: float32[2]"));
/// assert!(device_get(&x).is_ok());
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn transfer_guard(level: impl IntoChoice<TransferGuardLevel>) -> TransferGuard {
    guard(None, level.into_choice())
}

/// Like [`transfer_guard`], for transfers from the host to a device.
pub fn transfer_guard_host_to_device(level: impl IntoChoice<TransferGuardLevel>) -> TransferGuard {
    guard(Some(HostToDevice), level.into_choice())
}

/// Like [`transfer_guard`], for transfers between devices.
pub fn transfer_guard_device_to_device(level: impl IntoChoice<TransferGuardLevel>) -> TransferGuard {
    guard(Some(DeviceToDevice), level.into_choice())
}

/// Like [`transfer_guard`], for transfers from a device to the host.
pub fn transfer_guard_device_to_host(level: impl IntoChoice<TransferGuardLevel>) -> TransferGuard {
    guard(Some(DeviceToHost), level.into_choice())
}

/// Sets the levels of the process by the option's name: `transfer_guard`, or one of its three directions.
pub(crate) fn set_of_process(option: &str, level: TransferGuardLevel) {
    let directions: &[Direction] = match option {
        "transfer_guard_host_to_device" => &[HostToDevice],
        "transfer_guard_device_to_device" => &[DeviceToDevice],
        "transfer_guard_device_to_host" => &[DeviceToHost],
        _ => &[HostToDevice, DeviceToDevice, DeviceToHost],
    };
    for direction in directions {
        let before = PROCESS[*direction as usize].swap(level as u8, Relaxed);
        match (before, level as u8) {
            (0, 1..) => GUARDS.fetch_add(1, Relaxed),
            (1.., 0) => GUARDS.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }
}

fn level_of_process(direction: Direction) -> TransferGuardLevel {
    LEVELS[usize::from(PROCESS[direction as usize].load(Relaxed)).min(LEVELS.len() - 1)]
}

/// Logs or rejects a transfer of a value of this type.
#[inline]
pub(crate) fn check(direction: Direction, is_explicit: bool, value: &dyn Display) -> Result<()> {
    if GUARDS.load(Relaxed) == 0 { Ok(()) } else { check_level(direction, is_explicit, value) }
}

#[cold]
fn check_level(direction: Direction, is_explicit: bool, value: &dyn Display) -> Result<()> {
    let level = THREAD
        .find_last(|(guarded, level)| guarded.is_none_or(|guarded| guarded == direction).then_some(*level))
        .unwrap_or_else(|| Choice::Value(level_of_process(direction)))
        .value("transfer_guard")?;
    let (name, help) = match direction {
        HostToDevice => {
            ("host-to-device", "move the value with `device_put` before, or allow it with `transfer_guard`")
        }
        DeviceToDevice => ("device-to-device", "move it with `device_put` before, or allow it with `transfer_guard`"),
        DeviceToHost => ("device-to-host", "read it with `device_get`, or allow it with `transfer_guard`"),
    };
    match (level, is_explicit) {
        (DisallowExplicit, _) | (Disallow, false) => {
            Err(err!(Runtime, "Disallowed {name} transfer: {value}").help(help))
        }
        (LogExplicit, _) | (Log, false) => {
            warning::warn(&format!("{name} transfer: {value}"), help);
            Ok(())
        }
        _ => Ok(()),
    }
}
