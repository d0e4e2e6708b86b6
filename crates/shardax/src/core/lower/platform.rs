//! What a program is written for. Text that works around a weakness of one platform's engine is written for it alone.

use crate::error::{Error, err};

/// The platform of the devices that a program is lowered for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Platform {
    #[default]
    Cpu,
    Gpu,
    Tpu,
    /// One that this library knows nothing of.
    Other,
}

impl Platform {
    /// The platform that a plugin calls by this name.
    pub fn named(name: &str) -> Platform {
        match name {
            "cpu" => Platform::Cpu,
            "cuda" | "rocm" | "gpu" => Platform::Gpu,
            "tpu" => Platform::Tpu,
            _ => Platform::Other,
        }
    }

    /// Whether programs can move values between memories of its devices.
    pub fn has_memories(self) -> bool {
        matches!(self, Platform::Gpu | Platform::Tpu)
    }

    /// The name in messages.
    pub fn text(self) -> &'static str {
        match self {
            Platform::Cpu => "CPU",
            Platform::Gpu => "GPU",
            Platform::Tpu => "TPU",
            Platform::Other => "this platform",
        }
    }

    /// The error of an operation that the platform does not have; `way_round` says what to do.
    pub fn lacks(self, operation: &str, way_round: &str) -> Error {
        err!(NotImplemented, "{operation} is not implemented on {}", self.text()).help(way_round)
    }
}
