//! Target platforms. Text that works around a defect of a platform's plugin is only written for that platform.

use crate::error::{Error, err};

/// The platform that a program is lowered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Platform {
    #[default]
    Cpu,
    Gpu,
    Tpu,
    /// An unknown platform.
    Other,
}

impl Platform {
    /// Returns the platform of this name.
    pub fn named(name: &str) -> Platform {
        match name {
            "cpu" => Platform::Cpu,
            "cuda" | "rocm" | "gpu" => Platform::Gpu,
            "tpu" => Platform::Tpu,
            _ => Platform::Other,
        }
    }

    /// Returns `true` if this is the name of the platform.
    pub fn is_named(self, name: &str) -> bool {
        self != Platform::Other && self == Platform::named(name)
    }

    /// Returns `true` if programs can move values between memories of its devices.
    pub fn has_memories(self) -> bool {
        matches!(self, Platform::Gpu | Platform::Tpu)
    }

    /// Returns the name of the platform in messages.
    pub fn text(self) -> &'static str {
        match self {
            Platform::Cpu => "CPU",
            Platform::Gpu => "GPU",
            Platform::Tpu => "TPU",
            Platform::Other => "this platform",
        }
    }

    /// Returns the error for an operation that the platform does not support. `way_round` is the advice.
    pub fn lacks(self, operation: &str, way_round: &str) -> Error {
        err!(NotImplemented, "{operation} is not implemented on {}", self.text()).help(way_round)
    }
}
