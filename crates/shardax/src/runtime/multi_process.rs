//! Programs for devices of several processes, on a plugin that supports only one process. Such a program is partitioned
//! over all devices, made local, and compiled for this process's devices.
//!
//! The processes first agree that they all compile the same program. Then one process on each host compiles it, or
//! loads it from disk, and sends it to the other processes on this host.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};
use shardax_exchange::Shared;
use shardax_pjrt as pjrt;

use super::disk_cache;
use crate::error::{Result, err};
use crate::sharding::Device;
use crate::sharding::distributed::{Processes, processes};

/// A compiled program, and the partitioned program that it was compiled from.
pub(super) struct MultiProcessExecutable {
    pub executable: pjrt::Executable,
    /// The program of one device, with its collectives.
    pub partitioned: pjrt::Partitioned,
    /// The processes that run it.
    pub shared: Arc<Shared>,
}

/// A compilation job.
pub(super) struct Job<'a> {
    pub client: &'a pjrt::Client,
    pub name: &'a str,
    /// The types of its arguments.
    pub types: &'a str,
    /// The program's text, without locations.
    pub text: &'a str,
    /// The options for all devices.
    pub options: &'a pjrt::CompileOptions,
    pub signature: &'a pjrt::Signature,
    /// `true` if the program calls functions numbered by this process, so that no other process can use the executable.
    pub own: bool,
}

/// Returns the processes, if some of these devices belong to other processes and the plugin does not support several.
pub(crate) fn processes_of(devices: &[Device]) -> Option<&'static Processes> {
    processes().filter(|p| p.exchanges() && devices.iter().any(|device| !device.is_addressable()))
}

impl Job<'_> {
    /// Compiles the program. The outer error is an error between processes, the inner error comes from the compiler.
    pub fn compile(&self, processes: &Processes, devices: &[Device]) -> Result<pjrt::Result<MultiProcessExecutable>> {
        // Compilations exchange messages. All processes must exchange them in the same order, so only one compilation
        // runs at a time.
        static COMPILATION: Mutex<()> = Mutex::new(());
        let _compilation = COMPILATION.lock().unwrap_or_else(PoisonError::into_inner);
        let ranks = processes.of(devices);
        if !ranks.contains(&processes.rank()) {
            return Err(err!(
                Value,
                "none of the devices of {} belong to process {}: they belong to the processes {ranks:?}",
                self.name,
                processes.rank()
            )
            .help(
                "call it on the processes whose devices are in its mesh: `if mesh.local_devices().is_empty() { … }`",
            ));
        }
        processes.check_exchange(self.name)?;
        let parts = [self.name, self.types, if self.own { "" } else { self.text }, &format!("{:?}", self.options)];
        let digest = Sha256::digest(parts.join("\0"));
        let number = u64::from_le_bytes(digest[..8].try_into().unwrap_or_default()) | 2;
        let what = format!("the compilation of `{}` ({})", self.name, self.types);
        processes.agree(&ranks, &what, &[digest.as_slice()], &|rank, _| {
            err!(Runtime, "process {rank} compiles another program than this one as `{}` ({}): all processes must run the same computations in the same order", self.name, self.types)
                .help("look for differences between processes in the function, such as constants computed from `process_index()`, random seeds or options")
        })?;
        // The name is for error messages; the first arguments are enough.
        let first_types: Vec<&str> = self.types.split(", ").take(4).collect();
        let more = if self.types.split(", ").nth(4).is_some() { ", …" } else { "" };
        let what = format!("{} ({}{more})", self.name, first_types.join(", "));
        processes.name_program(number, &what);
        let shared = Arc::new(Shared { program: number, processes: ranks.clone(), what });

        // One process of each host compiles, and shares the bytes with the others.
        let like = processes.like(&ranks);
        let compiler = like.first().copied().unwrap_or(processes.rank());
        if self.own || like.len() < 2 {
            return Ok(self.load_or_compile(&shared).map(|(executable, _)| executable));
        }
        let mut compiled = None;
        let received = processes.share((compiler, &like), || {
            let (executable, bytes) = self.load_or_compile(&shared).map_err(|error| error.message)?;
            compiled = Some(executable);
            Ok(bytes)
        })?;
        Ok(match (compiled, received) {
            (Some(executable), _) => Ok(executable),
            (None, Ok(bytes)) => self.load(&bytes, &shared),
            (None, Err(message)) => Err(pjrt::Error::new(pjrt::Code::Unknown, message)),
        })
    }

    /// The options for this process's devices.
    fn local(&self) -> pjrt::CompileOptions {
        let addressable: Vec<usize> = self.client.addressable_devices().iter().map(|device| device.id()).collect();
        let device_ids: Vec<usize> =
            self.options.device_ids.iter().copied().filter(|device| addressable.contains(device)).collect();
        pjrt::CompileOptions {
            num_replicas: device_ids.len(),
            device_ids,
            overrides: self.options.overrides.clone(),
            ..Default::default()
        }
    }

    /// Loads the program from disk, or compiles it. Also returns the bytes that other processes can load.
    fn load_or_compile(&self, shared: &Arc<Shared>) -> pjrt::Result<(MultiProcessExecutable, Vec<u8>)> {
        let local = self.local();
        let exact = processes().is_none_or(Processes::sums_exactly);
        if self.own {
            return self.compile_part(shared, &local, exact);
        }
        let settings = format!("spanning, {} here, exact {exact}, {:?}", local.num_replicas, self.options);
        disk_cache::load_or_make(
            self.client,
            (&settings, self.text),
            &|bytes| Ok((self.load(bytes, shared)?, bytes.to_vec())),
            &|| self.compile_part(shared, &local, exact),
            &|(_, bytes)| Ok(bytes.clone()),
        )
    }

    /// Compiles the part of the program that this process runs, and returns the bytes that other processes can load.
    fn compile_part(
        &self,
        shared: &Arc<Shared>,
        local: &pjrt::CompileOptions,
        exact: bool,
    ) -> pjrt::Result<(MultiProcessExecutable, Vec<u8>)> {
        let partitioned = self.client.partition(self.text, self.options)?;
        let module = partitioned.localize_as(shared.program, exact)?;
        let executable = self.client.compile_hlo(&module, local, self.signature.clone())?;
        let bytes = bundle(&partitioned, &executable)?;
        Ok((MultiProcessExecutable { executable, partitioned, shared: shared.clone() }, bytes))
    }

    fn load(&self, bytes: &[u8], shared: &Arc<Shared>) -> pjrt::Result<MultiProcessExecutable> {
        let (head, parts) = bytes.split_at_checked(8).ok_or_else(Self::incomplete)?;
        let length = usize::try_from(u64::from_le_bytes(head.try_into().unwrap_or_default())).unwrap_or(usize::MAX);
        let (module, executable) = parts.split_at_checked(length).ok_or_else(Self::incomplete)?;
        Ok(MultiProcessExecutable {
            executable: self.client.deserialize(executable, &self.local(), self.signature.clone())?,
            partitioned: pjrt::Partitioned::from_module(module.to_vec(), self.options.device_ids.clone())?,
            shared: shared.clone(),
        })
    }

    fn incomplete() -> pjrt::Error {
        pjrt::Error::new(pjrt::Code::DataLoss, "a compiled program came in part")
    }
}

fn bundle(partitioned: &pjrt::Partitioned, executable: &pjrt::Executable) -> pjrt::Result<Vec<u8>> {
    let module = partitioned.module();
    let mut bytes = (module.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(module);
    bytes.extend(executable.serialize()?);
    Ok(bytes)
}
