//! XLA's options for the programs of each platform.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shardax_pjrt::Value;

use super::quirks;
use crate::core::lower::Platform;
use crate::core::program::Program;
use crate::warning::warn;

/// The optimization effort of the compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Effort {
    #[default]
    Full,
    /// For a program that takes much longer to compile than to run: a fraction of the compilation time.
    Quick,
}

/// Options that must be off on CPU, because numbers can be wrong otherwise; each has its quirk.
const CPU_WORKAROUNDS: [(&str, &str); 2] =
    [("xla_cpu_enable_fast_min_max", "fast-extremes-drop-nan"), ("xla_cpu_use_xnnpack", "stale-packed-operands")];

/// Returns the options for a program on a platform. A user's option with the same name replaces the option here.
pub(crate) fn compiler_options(platform: Platform, program: &Program, effort: Effort) -> Vec<(&'static str, Value)> {
    let mut options = match platform {
        Platform::Cpu => cpu_options(effort),
        _ => accelerator_options(platform, program),
    };
    options.retain(|(name, _)| !unknown_options().contains(name));
    options
}

fn cpu_options(effort: Effort) -> Vec<(&'static str, Value)> {
    let workarounds = CPU_WORKAROUNDS.iter().filter(|(_, quirk)| quirks::has(Platform::Cpu, quirk));
    let mut options: Vec<_> = workarounds.map(|(option, _)| (*option, Value::Bool(false))).collect();
    if quirks::has(Platform::Cpu, "sums-of-ynnpack") {
        options.push(("xla_cpu_experimental_ynn_fusion_type", Value::String(String::new())));
    }
    if effort == Effort::Quick {
        options.push(("xla_cpu_use_fusion_emitters", Value::Bool(false)));
        options.push(("xla_backend_optimization_level", Value::Int(1)));
    }
    options
}

fn accelerator_options(platform: Platform, program: &Program) -> Vec<(&'static str, Value)> {
    // Excess precision is good for bfloat16 and float16, because it saves time and only adds digits. But a conversion
    // to a narrower type and back is a quantization that the user wrote.
    let is_narrow =
        |program: &Program| program.avals.iter().any(|aval| aval.dtype.is_float() && aval.dtype.is_narrow());
    let mut quantizes = is_narrow(program);
    program.for_each_distinct_eqn(&mut |eqn| quantizes |= eqn.primitive.programs().into_iter().any(is_narrow));
    if quantizes && quirks::has(platform, "quantizations-left-out") {
        vec![("xla_allow_excess_precision", Value::Bool(false))]
    } else {
        Vec::new()
    }
}

/// Options that the loaded CPU plugin does not know.
static UNKNOWN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

fn unknown_options() -> MutexGuard<'static, Vec<&'static str>> {
    // A push cannot leave the list in an invalid state, so a poisoned lock is safe to use.
    UNKNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Continues without an option that the plugin does not know. Warns if numbers can be wrong now.
pub(crate) fn forget_option(option: &'static str) {
    unknown_options().push(option);
    // A plugin that does not know the option of YNNPACK has no YNNPACK, so its numbers are not wrong.
    if let Some((_, quirk)) = CPU_WORKAROUNDS.iter().find(|(name, _)| *name == option) {
        let problem = quirks::problem(quirk);
        warn(
            &format!("the CPU plugin does not know the option {option}, which prevents wrong results: {problem}"),
            "use the plugin that shardax installs (unset SHARDAX_CPU_PLUGIN), or make sure that this one needs no such option",
        );
    }
}
