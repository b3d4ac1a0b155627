//! What a user of an ONNX file needs beside the graph: which class a score is of, and how an input is made.

use prost::Message;
use run_record::DataRecord;
use serde::Serialize;

use super::graph::OnnxFile;
use super::proto::StringStringEntryProto;

impl OnnxFile {
    /// Adds the description of the data set as `metadata_props`, under the names that the values have in `run.json`
    /// (docs/quantization.md); each value is JSON.
    pub fn describe(&mut self, data: &DataRecord) {
        let DataRecord { shape, class_names, element, mean, std, fit, features, .. } = data;
        // The one serialiser: as a value of `serde_json`, an f32 would have the digits of an f64.
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

    /// The content of the file.
    pub fn bytes(&self) -> Vec<u8> {
        self.model.encode_to_vec()
    }
}
