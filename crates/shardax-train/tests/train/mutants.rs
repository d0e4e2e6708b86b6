//! Mutants of data, logs and checkpoints: each is read or is an error (`shardax/tests/common/mutants.rs`).

use std::io::Write;
use std::path::Path;

use shardax::prelude::*;
use shardax_train::checkpoint::{self, Checkpoint, RestoreOptions, SaveArgs};
use shardax_train::data::*;
use shardax_train::log::JsonLines;

use super::Folder;
use super::data::{gzip, idx_bytes, member, npy_bytes};
use super::mutating::{self, Format};

fn formats(folder: &Path) -> Vec<Format<'_>> {
    fn npy(shape: &str, descr: &str, data: &[u8]) -> Vec<u8> {
        npy_bytes(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), data)
    }
    let npys = vec![npy("(2, 3)", "<f4", &[7; 24]), npy("(3,)", ">c8", &[1; 24]), npy("()", "|b1", &[1])];
    let tar = (0..6).flat_map(|i| member(&format!("d/{:04}.{}", i / 2, ["txt", "cls"][i % 2]), &[i as u8; 20]));
    let gnu = [long_name(&"x".repeat(150)), member("short", b"abc"), sparse(), pax(), member("2.txt", b"d")].concat();
    let tables = vec![b"a,b,\"c\"\n1,2.5,-3e7\n4,5,6\n".to_vec(), b"x\n1\n2\n\n3".to_vec()];
    let log = b"{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":\"NaN\",\"x\":1e9}\n".to_vec();
    // Features add to it.
    #[allow(unused_mut)]
    let mut mutants = vec![
        Format::new("npy", npys.clone(), |path| shardax_train::data::npy(path).map(drop)),
        Format::new("npz", npys.iter().map(|x| zipped(x.clone())).collect(), |path| npz(path).map(drop)),
        Format::new("npy in npz", npys, |path| npz(path).map(drop)).repaired(zipped),
        Format::new("tar", vec![tar.chain([0; 1024]).collect(), gnu], members).repaired(summed),
        Format::new("idx", vec![idx_bytes(8, &[2, 3, 4], &[9; 24]), idx_bytes(0x0d, &[4], &[1; 16])], |path| {
            idx(path).map(drop)
        })
        .repaired(|x| gzip(&x)),
        Format::new("csv", tables, |path| csv(path).map(drop)).repaired(|x| gzip(&x)),
        Format::new("log", vec![log], |path| JsonLines::read(path).map(drop)),
        Format::new("manifest", vec![manifest(folder)], restore).memory(PLUGIN),
    ];
    #[cfg(feature = "parquet")]
    mutants.push(Format::new("parquet", vec![golden("table.parquet")], |path| {
        let table = parquet([path])?;
        (0..table.len().min(20)).try_for_each(|i| table.get(i).map(drop))
    }));
    #[cfg(feature = "image")]
    {
        use image::{ImageFormat, RgbImage};
        let packed = |format| {
            let image = RgbImage::from_fn(9, 7, |x, y| image::Rgb([x as u8 * 20, y as u8 * 30, 90]));
            let mut bytes = std::io::Cursor::new(Vec::new());
            image.write_to(&mut bytes, format).expect("an image");
            bytes.into_inner()
        };
        let decode = |path: &Path| decode_image(&std::fs::read(path).expect("the file"), "mutant").map(drop);
        mutants.push(
            Format::new("images", vec![packed(ImageFormat::Png), packed(ImageFormat::Jpeg)], decode).repaired(png_sums),
        );
    }
    mutants
}

/// Memory of a process that also has the plugin, in MiB.
const PLUGIN: u64 = 3 << 10;

#[cfg(feature = "parquet")]
fn golden(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)).expect("the file")
}

fn members(path: &Path) -> Result<()> {
    let mut stream = WebDataset::new([path]);
    while let Some(item) = stream.next_item() {
        item?;
        let position = stream.position();
        stream.seek(&position)?;
    }
    Ok(())
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

/// A member of 4096 bytes in a file that ends after 512 of them.
fn sparse() -> Vec<u8> {
    let mut sparse = member("1.bin", &[5; 512]);
    sparse[386..398].copy_from_slice(b"00000001000\0");
    sparse[398..410].copy_from_slice(b"00000001000\0");
    sparse[483..495].copy_from_slice(b"00000010000\0");
    with_kind(sparse, b'S')
}

#[cfg(feature = "image")]
fn png_sums(mut png: Vec<u8>) -> Vec<u8> {
    let mut offset = 8;
    while let Some(length) = png.get(offset..offset + 4) {
        let length = length.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        let Some(sum) = png.get(offset + 4..offset + 8 + length).map(crc32fast::hash) else { break };
        let Some(place) = png.get_mut(offset + 8 + length..offset + 12 + length) else { break };
        place.copy_from_slice(&sum.to_be_bytes());
        offset += 12 + length;
    }
    png
}

fn tree() -> (Array, Vec<Array>, f64) {
    (ones([4, 6]), vec![array([1, 2, 3]), array(true)], 0.5)
}

/// The manifest of a checkpoint, whose other files stay.
fn manifest(folder: &Path) -> Vec<u8> {
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
    let opened = Checkpoint::open(&path)?;
    opened.verify()?;
    opened.restore_with(&tree(), &RestoreOptions::new().restore_numbers()).map(drop)
}

#[test]
#[ignore = "run by `mutated_files_are_read_or_errors`"]
fn reads_mutants() {
    let Some(folder) = mutating::folder() else { return };
    mutating::read(&formats(&folder), &folder);
}

#[test]
fn mutated_files_are_read_or_errors() {
    let folder = Folder::new();
    mutating::run("mutants::reads_mutants", &formats(&folder.0), &folder.0, 300);
}
