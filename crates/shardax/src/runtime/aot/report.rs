//! Reports on compiled programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use shardax_pjrt as pjrt;

use crate::error::Result;

/// HLO text: computation by computation, each instruction with its shape on one device.
pub(super) fn text(name: &str, instructions: &[pjrt::HloInstruction]) -> String {
    let mut text = format!("HloModule {name}");
    let mut computation = None;
    for instruction in instructions {
        if computation != Some(&instruction.computation) {
            let close = if computation.is_some() { "\n}" } else { "" };
            let entry = if instruction.in_entry { "ENTRY " } else { "" };
            let _ = write!(text, "{close}\n\n{entry}{} {{", instruction.computation);
            computation = Some(&instruction.computation);
        }
        let _ = write!(text, "\n  {instruction}");
    }
    text.push_str("\n}\n");
    text
}

/// The compiler's numeric cost estimates.
pub(super) fn costs(program: &pjrt::CompiledProgram) -> Result<BTreeMap<String, f64>> {
    Ok(program
        .cost_analysis()?
        .into_iter()
        .filter_map(|(name, value)| match value {
            pjrt::Value::Float(v) => Some((name, f64::from(v))),
            pjrt::Value::Int(v) => Some((name, v as f64)),
            _ => None,
        })
        .collect())
}
