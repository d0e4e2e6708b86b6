//! Mutated files of every format: each is read or is an error, within bounded time and memory.
//!
//! A process of its own reads them, so that an abort, a hang or memory beyond the bound is seen, with the mutant's
//! number:
//!
//!     SHARDAX_MUTANTS=100000 cargo test -p shardax-train --all-features --test train mutants -- --nocapture
//!
//! `SHARDAX_MUTANTS_OF=tar SHARDAX_MUTANTS_FROM=4711 SHARDAX_MUTANTS=1` reads that mutant alone.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use shardax::prelude::*;
use shardax_train::checkpoint::{self, Checkpoint, RestoreOptions, SaveArgs};
use shardax_train::data::*;
use shardax_train::log::JsonLines;

use super::Folder;
use super::data::{gzip, idx_bytes, member, npy_bytes};

/// A format of files.
struct Format {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    /// Sets checksums right, or packs the bytes: of every second mutant.
    repair: fn(Vec<u8>) -> Vec<u8>,
    read: fn(&Path) -> Result<()>,
    /// Of address space, in MiB.
    memory: u64,
}

/// What one mutant may take.
const LONGEST: Duration = Duration::from_secs(20);

fn formats(folder: &Folder) -> Vec<Format> {
    let npy = |shape: &str, descr: &str, data: &[u8]| {
        npy_bytes(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), data)
    };
    let npys = vec![npy("(2, 3)", "<f4", &[7; 24]), npy("(3,)", ">c8", &[1; 24]), npy("()", "|b1", &[1])];
    let tar = (0..6).flat_map(|i| member(&format!("d/{:04}.{}", i / 2, ["txt", "cls"][i % 2]), &[i as u8; 20]));
    let gnu = [long_name(&"x".repeat(150)), member("short", b"abc"), sparse(), pax(), member("2.txt", b"d")].concat();
    // Features add to it.
    #[allow(unused_mut)]
    let mut all = vec![
        Format {
            name: "npy",
            seeds: npys.clone(),
            repair: |x| x,
            read: |path| shardax_train::data::npy(path).map(drop),
            memory: 2 << 10,
        },
        Format {
            name: "npz",
            seeds: npys.iter().map(|x| zipped(x.clone())).collect(),
            repair: |x| x,
            read: |path| npz(path).map(drop),
            memory: 2 << 10,
        },
        Format { name: "npy-in-npz", seeds: npys, repair: zipped, read: |path| npz(path).map(drop), memory: 2 << 10 },
        Format {
            name: "tar",
            seeds: vec![tar.chain([0; 1024]).collect(), gnu],
            repair: summed,
            read: |path| {
                let mut stream = WebDataset::new([path]);
                while let Some(item) = stream.next_item() {
                    item?;
                    let position = stream.position();
                    stream.seek(&position)?;
                }
                Ok(())
            },
            memory: 2 << 10,
        },
        Format {
            name: "idx",
            seeds: vec![idx_bytes(8, &[2, 3, 4], &[9; 24]), idx_bytes(0x0d, &[4], &[1; 16])],
            repair: |x| gzip(&x),
            read: |path| idx(path).map(drop),
            memory: 2 << 10,
        },
        Format {
            name: "csv",
            seeds: vec![b"a,b,\"c\"\n1,2.5,-3e7\n4,5,6\n".to_vec(), b"x\n1\n2\n\n3".to_vec()],
            repair: |x| gzip(&x),
            read: |path| csv(path).map(drop),
            memory: 2 << 10,
        },
        Format {
            name: "log",
            seeds: vec![b"{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":\"NaN\",\"x\":1e9}\n".to_vec()],
            repair: |x| x,
            read: |path| JsonLines::read(path).map(drop),
            memory: 2 << 10,
        },
        Format { name: "manifest", seeds: vec![manifest(folder)], repair: |x| x, read: restore, memory: 24 << 10 },
    ];
    #[cfg(feature = "parquet")]
    all.push(Format {
        name: "parquet",
        seeds: vec![
            std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/table.parquet")).expect("the file"),
        ],
        repair: |x| x,
        read: |path| {
            let table = parquet([path])?;
            (0..table.len().min(20)).try_for_each(|i| table.get(i).map(drop))
        },
        memory: 2 << 10,
    });
    #[cfg(feature = "image")]
    {
        use image::{ImageFormat, RgbImage};
        let packed = |format| {
            let image = RgbImage::from_fn(9, 7, |x, y| image::Rgb([x as u8 * 20, y as u8 * 30, 90]));
            let mut bytes = std::io::Cursor::new(Vec::new());
            image.write_to(&mut bytes, format).expect("an image");
            bytes.into_inner()
        };
        all.push(Format {
            name: "images",
            seeds: vec![packed(ImageFormat::Png), packed(ImageFormat::Jpeg)],
            repair: png_sums,
            read: |path| decode_image(&std::fs::read(path).expect("the file"), "mutant").map(drop),
            memory: 2 << 10,
        });
    }
    all
}

fn zipped(npy: Vec<u8>) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, method) in [("a.npy", zip::CompressionMethod::Stored), ("b.npy", zip::CompressionMethod::Deflated)] {
        zip.start_file(name, zip::write::SimpleFileOptions::default().compression_method(method)).expect("an entry");
        zip.write_all(&npy).expect("an entry");
    }
    zip.finish().expect("a zip file").into_inner()
}

/// Headers with the checksums that they should have.
fn summed(mut tar: Vec<u8>) -> Vec<u8> {
    for header in tar.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    tar
}

fn with_kind(mut member: Vec<u8>, kind: u8) -> Vec<u8> {
    member[156] = kind;
    // GNU's header.
    member[257..265].copy_from_slice(b"ustar  \0");
    summed(member)
}

fn long_name(name: &str) -> Vec<u8> {
    with_kind(member("././@LongLink", &[name.as_bytes(), b".txt\0"].concat()), b'L')
}

fn pax() -> Vec<u8> {
    let mut header = member("PaxHeaders/2", b"18 path=d/0009.cls\n15 size=0000000\n");
    header[156] = b'x';
    summed(header)
}

/// A member of 4096 bytes of which 512 are in the file.
fn sparse() -> Vec<u8> {
    let mut sparse = member("1.bin", &[5; 512]);
    sparse[386..398].copy_from_slice(b"00000001000\0");
    sparse[398..410].copy_from_slice(b"00000001000\0");
    sparse[483..495].copy_from_slice(b"00000010000\0");
    with_kind(sparse, b'S')
}

#[cfg(feature = "image")]
fn png_sums(mut png: Vec<u8>) -> Vec<u8> {
    let mut at = 8;
    while let Some(length) = png.get(at..at + 4) {
        let length = length.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        let Some(sum) = png.get(at + 4..at + 8 + length).map(crc32fast::hash) else { break };
        let Some(place) = png.get_mut(at + 8 + length..at + 12 + length) else { break };
        place.copy_from_slice(&sum.to_be_bytes());
        at += 12 + length;
    }
    png
}

fn tree() -> (Array, Vec<Array>, f64) {
    (ones([4, 6]), vec![array([1, 2, 3]), array(true)], 0.5)
}

/// The manifest of a checkpoint, whose other files stay.
fn manifest(folder: &Folder) -> Vec<u8> {
    let path = folder.join("checkpoint");
    if !path.exists() {
        let args = SaveArgs::new().metric("loss", 0.25).metadata(serde_json::json!({ "data": [1, { "x": null }] }));
        checkpoint::save_with(&path, &tree(), &args).expect("a checkpoint");
    }
    std::fs::read(path.join("manifest.json")).expect("the manifest")
}

fn restore(mutant: &Path) -> Result<()> {
    let path = mutant.with_file_name("checkpoint");
    let text = std::fs::read(mutant).expect("the mutant");
    std::fs::write(path.join("manifest.json"), &text).expect("the manifest");
    std::fs::write(path.join("commit"), format!("{:08x}\n", crc32fast::hash(&text))).expect("the commit");
    let found = Checkpoint::open(&path)?;
    found.verify()?;
    found.restore_with(&tree(), &RestoreOptions::new().restore_numbers()).map(drop)
}

/// A few changes of bytes, numbers and lengths.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..5) {
        if bytes.is_empty() {
            return bytes.push(rng.u8(..));
        }
        let at = rng.usize(..bytes.len());
        match rng.u8(..10) {
            0 => bytes[at] ^= 1 << rng.u8(..8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'-'][rng.usize(..8)],
            2 => bytes[at] = rng.u8(..),
            3 => bytes.truncate(at),
            4 | 5 => {
                // A number of several bytes, at one of the ends of its range.
                let width = [2, 4, 8][rng.usize(..3)];
                let value = [0, 1, u64::MAX, u64::MAX >> 1, 1 << 31, 1 << 40, 1 << 63][rng.usize(..7)];
                let number = if rng.bool() { value.to_le_bytes() } else { (value << (64 - 8 * width)).to_be_bytes() };
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            6 => {
                // A number as text becomes another.
                let digit = bytes[at..].iter().position(u8::is_ascii_digit).map(|next| at + next);
                if let Some(from) = digit {
                    let end = bytes[from..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |n| from + n);
                    let new = ["0", "1", "4294967296", "18446744073709551615", "-1", "1e308", "0.1", "[[[[", "null"];
                    bytes.splice(from..end, new[rng.usize(..new.len())].bytes());
                }
            }
            7 => {
                let end = (at + rng.usize(1..64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = rng.usize(..bytes.len());
                bytes.splice(to..to, part);
            }
            8 => drop(bytes.drain(at..(at + rng.usize(1..64)).min(bytes.len()))),
            _ => bytes.splice(at..at, (0..rng.usize(1..300)).map(|_| b'[')).for_each(drop),
        }
    }
}

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str, default: u64) -> u64 {
    setting(name).map_or(default, |text| text.parse().expect(name))
}

/// Reads the mutants of one format, and writes the number of each before it, and at the end the figures.
#[test]
#[ignore = "of `mutated_files_are_read_or_refused`, which starts it"]
fn reads_mutants() {
    let Some(name) = setting("SHARDAX_MUTANTS_OF") else { return };
    let folder = Folder::new();
    let format = formats(&folder).into_iter().find(|format| format.name == name).expect("a format");
    let progress = setting("SHARDAX_MUTANTS_PROGRESS").expect("a file");
    std::panic::set_hook(Box::new(|_| ()));
    let (from, count) = (number("SHARDAX_MUTANTS_FROM", 0), number("SHARDAX_MUTANTS", 300));
    let (mut read, mut slowest) = (0, Duration::ZERO);
    let path = folder.join("mutant");
    for seed in from..from + count {
        let mut rng =
            Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ crc32fast::hash(name.as_bytes()) as u64);
        let mut bytes = format.seeds[rng.usize(..format.seeds.len())].clone();
        mutate(&mut rng, &mut bytes);
        if rng.bool() {
            bytes = (format.repair)(bytes);
        }
        std::fs::write(&path, &bytes).expect("the mutant");
        std::fs::write(&progress, seed.to_string()).expect("the progress");
        let begin = Instant::now();
        let result = std::panic::catch_unwind(|| (format.read)(&path));
        slowest = slowest.max(begin.elapsed());
        match result {
            Ok(result) => read += u64::from(result.is_ok()),
            Err(_) => panic_of(&progress, seed),
        }
    }
    let text = format!("done: {read} of {count} were read, the slowest in {} ms", slowest.as_millis());
    std::fs::write(&progress, text).expect("the progress");
}

fn panic_of(progress: &str, seed: u64) -> ! {
    std::fs::write(progress, format!("{seed}, which panicked")).expect("the progress");
    std::process::exit(1)
}

#[test]
fn mutated_files_are_read_or_refused() {
    let folder = Folder::new();
    let count = number("SHARDAX_MUTANTS", 300);
    let only = setting("SHARDAX_MUTANTS_OF");
    for format in formats(&folder).into_iter().filter(|format| only.as_ref().is_none_or(|only| only == format.name)) {
        let progress = folder.join(format.name);
        let bounded = format!("ulimit -v {} && exec \"$0\" \"$@\"", format.memory << 10);
        let mut child = Command::new("sh")
            .args(["-c", &bounded])
            .arg(std::env::current_exe().expect("this program has a path"))
            .args(["--exact", "mutants::reads_mutants", "--ignored", "-q"])
            .env("SHARDAX_MUTANTS_OF", format.name)
            .env("SHARDAX_MUTANTS", count.to_string())
            .env("SHARDAX_MUTANTS_PROGRESS", &progress)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be started");
        let at = || std::fs::read_to_string(&progress).unwrap_or_default();
        let (mut last, mut since) = (at(), Instant::now());
        let status = loop {
            if let Some(status) = child.try_wait().expect("it can be waited for") {
                break status;
            }
            std::thread::sleep(Duration::from_millis(20));
            if last != at() {
                (last, since) = (at(), Instant::now());
            }
            if since.elapsed() > 3 * LONGEST {
                child.kill().expect("it can be ended");
                panic!("{}: mutant {last} took longer than {:?}", format.name, 3 * LONGEST);
            }
        };
        assert!(status.success() && at().starts_with("done"), "{}: mutant {}: {status}", format.name, at());
        println!("{}: {}", format.name, at());
    }
}
