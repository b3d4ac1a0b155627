//! Metadata of an ONNX file: which class a score belongs to, and how an input must be prepared.

use prost::Message;
use run_record::DataRecord;
use serde::Serialize;

use super::graph::OnnxFile;
use super::proto::StringStringEntryProto;

impl OnnxFile {
    /// Adds the description of the data set as `metadata_props`. The key of an entry is the name that the
    /// value has in `run.json`. The value is JSON (docs/quantization.md).
    pub fn describe(&mut self, data: &DataRecord) {
        let DataRecord { shape, class_names, element, mean, std, fit, features, .. } = data;
        // Serialise directly to text. A `serde_json::Value` would store an f32 as f64, with more digits.
        fn json(value: &impl Serialize) -> String {
            serde_json::to_string(value).expect("lists, numbers and text are JSON")
        }
        let entries = [
            ("shape", Some(json(shape))),
            ("class_names", Some(json(class_names))),
            ("element", Some(json(element))),
            ("mean", Some(json(mean)).filter(|_| !mean.is_empty())),
            ("std", Some(json(std)).filter(|_| !std.is_empty())),
            ("fit", fit.as_ref().map(json)),
            ("features", Some(json(features)).filter(|_| !features.is_empty())),
        ];
        self.model.metadata_props = entries
            .into_iter()
            .filter_map(|(key, value)| Some(StringStringEntryProto { key: key.to_owned(), value: value? }))
            .collect();
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.model.encode_to_vec()
    }
}
