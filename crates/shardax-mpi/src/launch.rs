//! The launcher of this process, detected from the environment.

use std::fmt;

/// MPI implementations with compatible launchers and libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Open MPI.
    OpenMpi,
    /// MPICH and its derivatives: Intel MPI, MVAPICH, Cray MPICH.
    Mpich,
}

/// A process's view of its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The command, with the MPI that it belongs to: `mpirun (Open MPI)`, `srun (Slurm)`.
    pub name: &'static str,
    /// The MPI whose library is required; `None` if any works.
    pub family: Option<Family>,
    /// The rank among all processes of the job.
    pub rank: usize,
    /// The number of processes of the job.
    pub size: usize,
    /// The rank among the processes of this host.
    pub local_rank: Option<usize>,
    /// The number of processes on this host.
    pub local_size: Option<usize>,
}

/// The environment variables of a launcher.
struct Variables {
    name: &'static str,
    family: Option<Family>,
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    /// A variable that must be set too, because shells inside an allocation have some of the others.
    also: Option<&'static str>,
}

const LAUNCHERS: &[Variables] = &[
    Variables {
        name: "mpirun (Open MPI)",
        family: Some(Family::OpenMpi),
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        also: None,
    },
    // Before Hydra, because srun sets PMI's variables as well.
    Variables {
        name: "srun (Slurm)",
        family: None,
        rank: "SLURM_PROCID",
        size: "SLURM_STEP_NUM_TASKS",
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_NTASKS_PER_NODE",
        also: Some("SLURM_STEP_ID"),
    },
    Variables {
        name: "mpirun (Hydra, of MPICH)",
        family: Some(Family::Mpich),
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        also: None,
    },
];

/// Reads a number that a launcher stores in an environment variable.
fn read_number(look: impl Fn(&str) -> Option<String>, name: &str) -> Option<usize> {
    look(name)?.trim().parse().ok()
}

impl Launcher {
    /// Detects the launcher of this process; `None` if it was started without one.
    pub fn detect() -> Option<Launcher> {
        Launcher::from_variables(|name| std::env::var(name).ok())
    }

    /// Detects a launcher from environment variables.
    pub fn from_variables(look: impl Fn(&str) -> Option<String>) -> Option<Launcher> {
        LAUNCHERS.iter().find_map(|v| {
            if v.also.is_some_and(|name| look(name).is_none()) {
                return None;
            }
            let (rank, size) = (read_number(&look, v.rank)?, read_number(&look, v.size)?);
            // A batch script is a step of one task that no launcher started.
            if rank >= size || v.also.is_some() && look(v.also?).is_some_and(|step| step.starts_with("batch")) {
                return None;
            }
            let (local_rank, local_size) = (read_number(&look, v.local_rank), read_number(&look, v.local_size));
            Some(Launcher { name: v.name, family: v.family, rank, size, local_rank, local_size })
        })
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of {} started by {}", self.rank, self.size, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Option<Launcher> {
        Launcher::from_variables(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn launchers_are_detected_by_their_variables() {
        let open = detect(&[
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ])
        .unwrap();
        assert_eq!((open.family, open.rank, open.size), (Some(Family::OpenMpi), 3, 4));
        assert_eq!((open.local_rank, open.local_size), (Some(1), Some(2)));
        let hydra = detect(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0")]).unwrap();
        assert_eq!((hydra.family, hydra.size, hydra.local_size), (Some(Family::Mpich), 2, None));
        let slurm = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "5"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("PMI_RANK", "5"),
            ("PMI_SIZE", "8"),
        ];
        assert_eq!(detect(&slurm).unwrap().to_string(), "process 5 of 8 started by srun (Slurm)");
    }

    #[test]
    fn a_process_without_a_launcher_has_none() {
        assert_eq!(detect(&[]), None);
        // A shell inside an allocation, and inconsistent variables.
        assert_eq!(detect(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), None);
        assert_eq!(detect(&[("PMI_RANK", "4"), ("PMI_SIZE", "4")]), None);
        assert_eq!(detect(&[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "4")]), None);
    }
}
