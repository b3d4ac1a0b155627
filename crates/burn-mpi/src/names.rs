//! PyTorch's name of a module's tensor, and the type that holds it, from the calls
//! by which Burn's visitors enter and leave modules.

/// A visitor's path in a module: the name of each field on the way, and the type that holds it.
#[derive(Default)]
pub(crate) struct ModulePath(Vec<(String, String)>);

impl ModulePath {
    /// Enters the field `name` of `container`, such as `Struct:Linear`.
    pub fn enter(&mut self, name: &str, container: &str) {
        self.0.push((name.to_owned(), container.to_owned()));
    }

    /// Leaves the last entered module.
    pub fn exit(&mut self) {
        self.0.pop();
    }

    /// The tensor's name, such as `conv1.weight`.
    pub fn name(&self) -> String {
        // An enum's variant is not a layer: PyTorch's names omit it.
        let layers = self.0.iter().filter(|(_, container)| !container.starts_with("Enum:"));
        layers.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(".")
    }

    /// Whether the tensor is the weight of Burn's `Linear`, by type and not by
    /// field name.
    pub fn is_linear_weight(&self) -> bool {
        self.0.last().is_some_and(|(name, container)| name == "weight" && container == "Struct:Linear")
    }
}
