"""Checks a manifest against a CustomResourceDefinition's schema. Unknown fields are errors, as for the API server:

    manifest.py kubeflow.org_mpijobs.yaml containers/mpijob.yaml

The MPI Operator publishes the first file as manifests/base/kubeflow.org_mpijobs.yaml. Needs jsonschema and
PyYAML.
"""

import sys

import jsonschema
import yaml


def strict(schema):
    """The schema as JSON Schema, where an object may have only the named properties."""
    if isinstance(schema, dict):
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        strict(value)
    return schema


definition, manifest = (yaml.safe_load(open(path)) for path in sys.argv[1:])
group, version = manifest["apiVersion"].split("/")
spec = definition["spec"]
assert (spec["group"], spec["names"]["kind"]) == (group, manifest["kind"]), "another resource"
schema = next(each["schema"]["openAPIV3Schema"] for each in spec["versions"] if each["name"] == version)
try:
    jsonschema.validate(manifest, strict(schema))
except jsonschema.ValidationError as error:
    sys.exit(f"{sys.argv[2]}: {error.json_path}: {error.message}")
print(f"{sys.argv[2]}: valid {group}/{version}")
