//! Platforms: rules for primitives that a platform's compiler needs in another form than the portable
//! [`Primitive::lower`], and passes over programs.
//!
//! A rule is a function for one primitive and one platform, or all platforms (`elementwise`). [`Lowering::program`] calls
//! the platform's rule first; if both rules return `None`, the operation is lowered in the portable form. `quirks` lists
//! the plugin defects that programs avoid; rules and portable forms query a defect by name ([`Lowering::has_quirk`]).

mod cpu;
mod elementwise;
mod fused_attention;
mod gpu;
mod host_calls;
pub(crate) mod options;
mod packed;
mod pallas;
mod quirks;
mod rules;
mod tpu;

pub(crate) use cpu::calling_thread::on_calling_thread;
#[cfg(feature = "cpu-kernels")]
pub(crate) use cpu::kernels::register as register_kernels;
pub(crate) use tpu::flash::{CallFile, ExportedFile};

use crate::core::lower::{Lowering, Platform, PlatformRules, ResultUse, Value};
use crate::core::primitive::Primitive;
use crate::core::program::{Aval, Program};
use crate::error::Result;
use crate::shape::sizes_are_open;

impl PlatformRules for Lowering {
    fn operation(&mut self, primitive: &dyn Primitive, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let values = packed::lower(self, primitive, args, outs)?;
        #[cfg(feature = "cpu-kernels")]
        if self.platform == Platform::Cpu {
            cpu::kernels::matmul::follow(self, primitive, args, &values);
            cpu::kernels::grouped::follow(self, primitive, args, &values);
        }
        Ok(values)
    }

    fn plugin_has(&self, quirk: &str) -> bool {
        quirks::has(self.platform, quirk)
    }

    fn check_text(&self, text: &str, num_partitions: usize) -> Result<()> {
        match self.platform {
            Platform::Tpu => tpu::check_text(self, text, num_partitions),
            _ => Ok(()),
        }
    }

    fn values_to_materialize(&self, program: &Program) -> Vec<bool> {
        if self.platform == Platform::Cpu && self.is_local() && !sizes_are_open() {
            cpu::materialize::materialized(program)
        } else {
            Vec::new()
        }
    }

    fn uses_of_transposes(&self, program: &Program) -> Vec<ResultUse> {
        if self.platform == Platform::Cpu && self.is_local() && !sizes_are_open() {
            cpu::transposes::uses(program)
        } else {
            Vec::new()
        }
    }

    #[cfg(feature = "cpu-kernels")]
    fn is_read(&self, value: Value) -> bool {
        !cpu::kernels::grouped::is_matrix(self, value)
    }

    #[cfg(not(feature = "cpu-kernels"))]
    fn is_read(&self, _value: Value) -> bool {
        true
    }
}
