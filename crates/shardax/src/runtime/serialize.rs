//! Serialization of compiled programs.
//!
//! The plugin's bytes do not identify their program, so the bytes of another program with the same types would load and
//! compute something else. Therefore a header line and the SHA-256 of the program's text precede them.

use sha2::{Digest, Sha256};
use shardax_pjrt as pjrt;

use super::cross_compile::CrossCompiledProgram;
use super::execute::LoadedProgram;
use super::load::Request;
use super::multi_process;
use crate::error::{Error, Result, err};
use crate::sharding::device::{check_current, client};

const FIRST_LINE: &[u8] = b"shardax program 1\n";
const DIGEST: usize = 32;

impl Request {
    /// The digest that identifies the program. It is computed from the portable text, because this text is the same in
    /// builds with and without CPU kernels.
    fn digest(&self) -> Result<[u8; DIGEST]> {
        Ok(Sha256::digest(self.portable_text(self.place.platform(), false)?).into())
    }

    /// Loads the program for these devices from its bytes.
    pub fn load_bytes(&self, bytes: &[u8]) -> Result<LoadedProgram> {
        let devices = self.place.devices();
        devices.first().map_or(Ok(()), check_current)?;
        if !self.retained().is_empty() || self.in_order()?.is_some() || multi_process::processes_of(devices).is_some() {
            return Err(err!(
                NotImplemented,
                "{} cannot be loaded from bytes: it calls functions of this process, or has devices of others",
                self.name
            )
            .help("compile the program on the machine that runs it"));
        }
        let parts = bytes.strip_prefix(FIRST_LINE).and_then(|rest| rest.split_first_chunk::<DIGEST>());
        let (digest, bytes) = parts.ok_or_else(|| {
            pjrt::Error::new(pjrt::Code::DataLoss, "these bytes are not a compiled program, or are damaged")
        })?;
        let donations = self.donations();
        let options = self.options_here(&[])?;
        // The program may come from a build with CPU kernels.
        #[cfg(feature = "cpu-kernels")]
        if self.place.platform() == crate::core::lower::Platform::Cpu {
            let _ = crate::backend::register_kernels();
        }
        let executable = client()?.pjrt.deserialize(bytes, &options, self.signature(&donations)?)?;
        if *digest != self.digest()? {
            return Err(err!(Value, "the bytes are of another program than {}, with arguments of the same types", self.name)
                .help("compile it with `lowered.compile()` and serialize the result; the bytes belong to one program text, including its constants"));
        }
        let out_shardings = self.result_shardings(&executable, None)?;
        if out_shardings.iter().all(Option::is_some) {
            return self.loaded(executable, None, out_shardings, 0);
        }
        Err(err!(Value, "the compiled program splits a result of {} in a way that no spec expresses", self.name)
            .help("set the shardings of the results (`out_shardings`) before lowering, in both processes"))
    }

    /// Returns the bytes of a program compiled from this request.
    pub fn bytes_of(&self, loaded: &LoadedProgram) -> Result<Vec<u8>> {
        if !loaded.retained.is_empty() || loaded.partitioned.is_some() {
            return Err(self.not_serializable());
        }
        self.with_digest(loaded.executable.serialize()?)
    }

    fn with_digest(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok([FIRST_LINE, &self.digest()?, &bytes].concat())
    }

    fn not_serializable(&self) -> Error {
        err!(
            NotImplemented,
            "{} cannot be serialized: it calls functions of this process, or has devices of others",
            self.name
        )
        .help("compile the program on the machine that runs it")
    }
}

impl CrossCompiledProgram {
    /// Serializes the program for a process with such devices.
    ///
    /// # Errors
    /// Returns an error if the program calls host functions, or if the plugin cannot serialize it.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let request = &self.request;
        if !request.retained().is_empty() {
            return Err(request.not_serializable());
        }
        request.with_digest(self.executable.serialize()?)
    }
}
