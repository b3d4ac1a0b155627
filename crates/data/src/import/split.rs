//! Recognises splits by name: which folder, table or array is for training and which is for testing.

/// What a split is for. If a source has several splits besides the training split, the one whose kind comes
/// first here is preferred as the test split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SplitKind {
    Train,
    Test,
    Evaluation,
    Validation,
    Development,
}

impl SplitKind {
    /// The splits that may become the test split.
    pub(crate) const OTHERS: [Self; 4] = [Self::Test, Self::Evaluation, Self::Validation, Self::Development];

    /// Returns the word for the split in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
            Self::Evaluation => "eval",
            Self::Validation => "val",
            Self::Development => "dev",
        }
    }
}

/// Words for splits. Of two words with the same beginning, the longer one comes first. The words are from
/// Hugging Face's `datasets` (hub-docs, "File names and splits"), ultralytics and Roboflow (`valid`), VOC
/// (`trainval`), Kaggle and fastai.
const WORDS: [(&str, SplitKind); 16] = [
    ("training", SplitKind::Train),
    ("trainval", SplitKind::Train),
    ("train", SplitKind::Train),
    ("trn", SplitKind::Train),
    ("testing", SplitKind::Test),
    ("test", SplitKind::Test),
    ("tst", SplitKind::Test),
    ("evaluation", SplitKind::Evaluation),
    ("eval", SplitKind::Evaluation),
    ("holdout", SplitKind::Evaluation),
    ("validation", SplitKind::Validation),
    ("validate", SplitKind::Validation),
    ("valid", SplitKind::Validation),
    ("val", SplitKind::Validation),
    ("development", SplitKind::Development),
    ("dev", SplitKind::Development),
];

/// Words for pictures and files. A folder with such a name is not a class.
const FILES: [&str; 20] = [
    "data", "dataset", "datasets", "file", "files", "folder", "image", "images", "img", "imgs", "jpeg",
    "jpegs", "jpg", "photo", "photos", "pic", "pics", "picture", "pictures", "png",
];
/// Words for annotations of the objects in pictures: COCO, Pascal VOC, YOLO, and folders of masks.
const ANNOTATIONS: [&str; 9] =
    ["annotation", "annotations", "bboxes", "boxes", "groundtruth", "label", "labels", "mask", "masks"];
/// Other words that may be beside the word of a split, as in `training_set`, `train_full_v2` and `val_64x64`.
const FILLERS: [&str; 17] = [
    "all", "cropped", "examples", "final", "full", "my", "new", "original", "raw", "resized", "sample",
    "samples", "set", "sets", "split", "v", "x",
];

fn is_filler(word: &str) -> bool {
    FILES.contains(&word) || FILLERS.contains(&word) || word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the words of a name in lower case. `TrainingSet`, `training-set` and `training_set` each give the
/// words `training` and `set`.
fn words(name: &str) -> Vec<String> {
    let (mut words, mut before) = (vec![String::new()], ' ');
    for char in name.chars() {
        let is_next =
            char.is_numeric() != before.is_numeric() || before.is_lowercase() && char.is_uppercase();
        if is_next || !char.is_alphanumeric() {
            words.push(String::new());
        }
        if char.is_alphanumeric() {
            words.last_mut().into_iter().for_each(|word| word.extend(char.to_lowercase()));
        }
        before = char;
    }
    words.retain(|word| !word.is_empty());
    if let Some(at) = words.windows(2).position(|pair| pair == ["hold", "out"]) {
        words.splice(at..at + 2, ["holdout".to_owned()]);
    }
    words
}

/// Returns the split that a word names. The word may be joined with a filler of more than two letters, as in
/// `trainset`.
fn of_word(word: &str) -> Option<SplitKind> {
    let names = |split: &str| {
        let rest = word.strip_prefix(split).or_else(|| word.strip_suffix(split));
        rest.is_some_and(|rest| rest.is_empty() || rest.len() > 2 && is_filler(rest))
    };
    WORDS.into_iter().find(|(split, _)| names(split)).map(|(_, split)| split)
}

/// Returns the split that a name contains, and the words that are neither splits nor fillers. Returns `None`
/// if the name contains no split or more than one.
fn parse(name: &str) -> Option<(SplitKind, Vec<String>)> {
    let words = words(name);
    let mut splits: Vec<SplitKind> = words.iter().filter_map(|word| of_word(word)).collect();
    splits.sort_unstable();
    splits.dedup();
    let split = match splits[..] {
        // `train_val`, as in VOC, is training and validation data together. It counts as the training split.
        [one] | [one @ SplitKind::Train, SplitKind::Validation] => one,
        _ => return None,
    };
    Some((split, words.into_iter().filter(|word| of_word(word).is_none() && !is_filler(word)).collect()))
}

/// Returns the split that a name stands for. Beside the word of the split, the name may have only fillers and
/// numbers: `train2017` and `training_set` are splits, and `train_station` is not.
pub(crate) fn of_name(name: &str) -> Option<SplitKind> {
    parse(name).filter(|(_, others)| others.is_empty()).map(|(split, _)| split)
}

/// Returns the split that a name contains, whatever other words are in it, as in `train_labels.csv`.
pub(crate) fn in_name(name: &str) -> Option<SplitKind> {
    parse(name).map(|(split, _)| split)
}

/// Returns the split of each of the names in one folder. A name with other words is also a split if the
/// training split and another split have the same other words: `seg_train` beside `seg_test`.
pub(crate) fn of_names(names: &[String]) -> Vec<Option<SplitKind>> {
    let parsed: Vec<_> = names.iter().map(|name| parse(name)).collect();
    let is_one = |(split, others): &(SplitKind, Vec<String>)| {
        let has = |is_train: bool| {
            let is_sibling = |(split, words): &(SplitKind, Vec<String>)| {
                words == others && (*split == SplitKind::Train) == is_train
            };
            parsed.iter().flatten().any(is_sibling)
        };
        (others.is_empty() || has(true) && has(false)).then_some(*split)
    };
    parsed.iter().map(|parsed| parsed.as_ref().and_then(is_one)).collect()
}

/// Returns whether the name of a folder says only that it contains pictures or annotations. Such a folder is
/// not a class.
pub(crate) fn is_no_class(name: &str) -> bool {
    let is_known = |word: &str| FILES.contains(&word) || ANNOTATIONS.contains(&word);
    let words = words(name);
    // Pascal VOC: `JPEGImages` is a single word here, because `G` is not lower case. `SegmentationClass`
    // contains masks.
    let is_of_voc = |word: &str| word.strip_prefix("jpeg").is_some_and(is_known);
    words.first().is_some_and(|first| first == "segmentation")
        || !words.is_empty() && words.iter().all(|word| is_known(word) || is_of_voc(word))
}

/// Returns whether the name of a folder says that it contains annotations.
pub(crate) fn is_of_annotations(name: &str) -> bool {
    words(name).iter().any(|word| ANNOTATIONS.contains(&&**word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_splits_are_known_in_every_spelling() {
        for (split, names) in [
            (
                SplitKind::Train,
                "train training TRAIN Train_Set training_set TrainingSet trainset train2017 2017-train train_images \
                 training-images traindata Train64x64 my_train_data train_v2 trainval train_val train.full imgtrain",
            ),
            (
                SplitKind::Test,
                "test Testing TEST test1 test_set testset test_images test-data tst TestImages",
            ),
            (SplitKind::Evaluation, "eval evaluation holdout hold-out hold_out_set Evaluation_Data"),
            (
                SplitKind::Validation,
                "val valid validation val2017 val_set validation_set valset ValidationSet",
            ),
            (SplitKind::Development, "dev devset development dev_set"),
        ] {
            names.split_whitespace().for_each(|name| assert_eq!(of_name(name), Some(split), "{name}"));
        }
        for name in [
            "train_station",
            "test_tube",
            "test tube 2",
            "trainer",
            "protest",
            "valley",
            "device",
            "steam train",
            "set",
            "2017",
            "train_labels",
            "test-masks",
            "train_test_split",
            "",
        ] {
            assert_eq!(of_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_split_is_found_by_its_own_name() {
        for split in [SplitKind::Train].into_iter().chain(SplitKind::OTHERS) {
            assert_eq!(of_name(split.name()), Some(split));
        }
    }

    #[test]
    fn words_around_a_split_are_those_of_its_sibling() {
        let splits =
            |names: &[&str]| of_names(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let [train, test, val] = [SplitKind::Train, SplitKind::Test, SplitKind::Validation].map(Some);
        assert_eq!(splits(&["seg_pred", "seg_test", "seg_train"]), [None, test, train]);
        assert_eq!(splits(&["ILSVRC2012_img_train", "ILSVRC2012_img_val"]), [train, val]);
        assert_eq!(splits(&["train_station", "test_tube", "steam_train"]), [None; 3]);
        assert_eq!(splits(&["blood_test", "blood_val"]), [None; 2], "without one for training");
    }

    #[test]
    fn folders_of_files_are_no_classes() {
        for name in ["images", "Images", "JPEGImages", "labels", "Annotations", "masks", "SegmentationClass"]
        {
            assert!(is_no_class(name), "{name}");
        }
        for name in ["sample1", "images2", "cat images", "label_1", "", "set", "mask_on"] {
            assert!(!is_no_class(name), "{name}");
        }
    }
}
