//! Runs the image examples as a newcomer does, each in its own process, and checks their output.

#[path = "../cifar10/model.rs"]
#[allow(dead_code)]
mod cifar10_model;
mod running;

use std::path::{Path, PathBuf};

use cifar10_model::{Cnn, ResNet};
use running::{numbers, one_of, output, run_of};
use shardax_nn::prelude::*;

/// A folder of one test, which is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("shardax-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file in CIFAR-10's format: a bright square whose colour and position encode the class.
fn synthetic(path: &str, count: usize) {
    let mut random = 12345u32;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) as usize % below
    };
    let mut bytes = Vec::new();
    for i in 0..count {
        let label = i % 10;
        let mut image = vec![0u8; 3072];
        image.iter_mut().for_each(|v| *v = draw(40) as u8);
        let (row, column) = (draw(6) + label / 5 * 16, draw(20));
        for plane in (0..3).filter(|plane| (label % 5 + 1) >> plane & 1 == 1) {
            for at in 0..100 {
                image[plane * 1024 + (row + at / 10) * 32 + column + at % 10] = 230;
            }
        }
        bytes.push(label as u8);
        bytes.extend(image);
    }
    std::fs::write(path, bytes).expect("a file");
}

fn data(folder: &Folder) {
    synthetic(&folder.path("data_batch_1.bin"), 256);
    synthetic(&folder.path("test_batch.bin"), 50);
}

/// The whole program: the model learns, the last batch is padded and masked, the replicas stay equal, the run resumes
/// on other devices, and the curves are drawn.
#[test]
fn cifar10() {
    let folder = Folder::new("cifar10");
    data(&folder);
    let (dir, run, plot) = (folder.path(""), folder.path("run"), folder.path("plot.svg"));
    let cifar10 = |more: &[&str]| output("cifar10", &[&["--data", &dir, "--learning-rate", "2e-3"], more].concat());
    let augmentations = "flip,crop,color,cutout";
    let two = ["--devices", "2", "--per-device-batch", "16"];
    let uninterrupted = cifar10(&[&two[..], &["--epochs", "4", "--augment", "crop", "--plot", &plot]].concat());
    assert!(
        uninterrupted.contains("Cnn: 60362 parameters, 32 images a step on 2 devices, 16 on each\n"),
        "{uninterrupted}"
    );
    let (losses, tests) = (numbers(&uninterrupted, ", loss "), numbers(&uninterrupted, "test/accuracy "));
    assert!(losses.len() == 4 && losses[3] < 0.8 * losses[0] && tests[3] > 0.3, "{uninterrupted}");
    assert!(uninterrupted.contains("replicas identical: true\n"), "{uninterrupted}");
    let svg = std::fs::read_to_string(&plot).expect("the plot");
    assert!(svg.starts_with("<svg") && svg.contains("accuracy"), "{svg}");
    // Gradient accumulation, augmentation on threads, and a run in two parts.
    let more = ["--augment", augmentations, "--threads", "3", "--accumulate", "2", "--run", &run];
    let first_loss = numbers(&cifar10(&[&two[..], &["--epochs", "1"], &more].concat()), ", loss ")[0];
    // The loss of the same images in one part on one device must be equal.
    if one_of(2) == 1 {
        let arguments = ["--devices", "1", "--per-device-batch", "32", "--epochs", "1", "--augment", augmentations];
        let single_device_loss = numbers(&cifar10(&arguments), ", loss ")[0];
        assert!(
            (single_device_loss - first_loss).abs() < 1e-3 * first_loss,
            "{single_device_loss} on one device, {first_loss} on two"
        );
    }
    let resumed = cifar10(&[&two[..], &["--epochs", "2"], &more].concat());
    assert!(resumed.contains("step 16: ") && !resumed.contains("step 8: "), "{resumed}");
    let log = std::fs::read_to_string(folder.path("run/metrics.jsonl")).expect("the log");
    assert_eq!(log.lines().count(), 2, "{log}");
    assert!(std::fs::read_to_string(folder.path("run/report.html")).expect("the report").contains("test/accuracy"));
    let done = cifar10(&[&["--epochs", "2", "--devices", "4", "--per-device-batch", "8"][..], &more].concat());
    assert_eq!(numbers(&done, "\ntest accuracy: "), numbers(&resumed, "\ntest accuracy: "), "{done}");

    let rejected = run_of("cifar10", &["--data", &folder.path("none")]);
    assert!(rejected.contains("cannot read the folder") && rejected.contains("data_batch_1.bin"), "{rejected}");
    std::fs::write(folder.path("data_batch_2.bin"), [3u8; 100]).expect("a file");
    let rejected = run_of("cifar10", &["--data", &dir]);
    assert!(
        rejected.contains("data_batch_2.bin is damaged") && rejected.contains("at byte 1, 3072 bytes"),
        "{rejected}"
    );
}

/// 128 images are 16 on each of 8 devices, labels are smoothed, and bfloat16 saves computation: the gradients that
/// devices send have the same size.
#[test]
fn cifar10_on_eight_devices() {
    let folder = Folder::new("cifar10-eight");
    data(&folder);
    let sent = |run: &str, more: &[&str]| -> String {
        let (data, run) = (folder.path(""), folder.path(run));
        let arguments = ["--data", &data, "--run", &run, "--per-device-batch", "16", "--epochs", "1"];
        let text = output("cifar10", &[&arguments[..], &["--label-smoothing", "0.1"], more].concat());
        assert!(text.contains("128 images a step on 8 devices, 16 on each\n"), "{text}");
        let report = std::fs::read_to_string(format!("{run}/report.html")).expect("the report");
        report.split_once("Communication in a step").expect("what is sent").1.to_owned()
    };
    let half = sent("half", &["--bf16"]);
    assert!(half.contains("<td>all-reduce</td><td>batch</td><td class=\"n\">8</td>"), "{half}");
    if one_of(2) == 1 {
        assert_eq!(sent("whole", &[]), half);
    }
}

/// A narrow ResNet-18 in bfloat16, with statistics over all devices.
#[test]
fn cifar10_resnet() {
    let folder = Folder::new("cifar10-resnet");
    data(&folder);
    let args = "--model resnet18 --width 4 --devices 2 --per-device-batch 32 --epochs 2 --bf16";
    let text =
        output("cifar10", &[&["--data", &folder.path("")], args.split(' ').collect::<Vec<_>>().as_slice()].concat());
    let losses = numbers(&text, ", loss ");
    assert!(losses.len() == 2 && losses[1] < losses[0], "{text}");
    assert!(text.contains("replicas identical: true\n"), "{text}");
}

/// The number of parameters of this form of ResNet-18.
#[test]
fn classifiers_have_the_usual_number_of_parameters() -> Result<()> {
    let cnn = eval_shape(|| Cnn::new(&mut Rngs::new(0)), ())?;
    assert_eq!(cnn.state_of(Filter::of::<Param>()).values().map(Array::size).sum::<usize>(), 60_362);
    let resnet = eval_shape(|| ResNet::resnet18(64, &mut Rngs::new(0)), ())?;
    assert_eq!(resnet.state_of(Filter::of::<Param>()).values().map(Array::size).sum::<usize>(), 11_173_962);
    Ok(())
}

/// It learns, and draws digits on the terminal and as a picture, with equal results on several devices.
#[test]
fn vae() {
    let folder = Folder::new("vae");
    let (run, picture, plot) = (folder.path("run"), folder.path("new.pgm"), folder.path("vae.svg"));
    let vae = |more: &[&str]| {
        let small = ["--steps", "60", "--log-every", "20", "--hidden", "64", "--batch-size", "32"];
        output("vae", &[&small, more].concat())
    };
    let printed = vae(&[]);
    let losses = numbers(&printed, "test/loss ");
    assert!(losses.len() == 3 && losses[2] < 0.9 * losses[0], "{printed}");
    assert!(printed.lines().filter(|line| line.contains("##")).count() > 3, "{printed}");
    let split = vae(&["--devices", "4", "--run", &run, "--samples", &picture, "--plot", &plot]);
    for (a, b) in losses.iter().zip(numbers(&split, "test/loss ")) {
        assert!((a - b).abs() < 2e-3 * a, "{a} alone, {b} on devices");
    }
    let drawn = std::fs::read(&picture).expect("the picture");
    assert!(drawn.starts_with(b"P5\n160 80\n255\n") && drawn.len() == 14 + 160 * 80);
    exists(&plot);
    exists(&folder.path("run/report.html"));
}

/// It learns; a run in two parts gives the same results as one without a stop.
#[test]
fn vit() {
    let folder = Folder::new("vit");
    let (run, plot) = (folder.path("run"), folder.path("vit.svg"));
    let vit = |more: &[&str]| {
        let small =
            ["--layers", "1", "--features", "32", "--batch-size", "32", "--learning-rate", "5e-3", "--log-every", "75"];
        output("vit", &[&small, more].concat())
    };
    let uninterrupted = vit(&["--steps", "150", "--plot", &plot]);
    let losses = numbers(&uninterrupted, "test/loss ");
    assert!(losses.len() == 2 && losses[1] < losses[0] && losses[1] < 1.5, "{uninterrupted}");
    exists(&plot);
    let stopped = vit(&["--steps", "150", "--devices", "2", "--run", &run]);
    assert!((numbers(&stopped, "test/loss ")[1] - losses[1]).abs() < 0.05, "{stopped}");
    // A slice resumes other programs.
    if one_of(2) == 1 {
        let on = vit(&["--steps", "225", "--devices", "2", "--run", &run]);
        assert!(on.contains("step 225: ") && !on.contains("step 150: "), "{on}");
    }
    let rejected = run_of("vit", &["--patch", "3"]);
    assert!(rejected.contains("patches of 3 pixels") && rejected.contains("divides 8 pixels"), "{rejected}");
}

fn exists(path: &str) {
    assert!(Path::new(path).exists(), "{path}");
}
