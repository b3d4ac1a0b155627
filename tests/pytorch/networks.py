"""The networks of `mpiburn train` in PyTorch. Layers and parameter names are those of the reports' programs
(docs/experiments.md)."""

from collections import OrderedDict
from types import SimpleNamespace

from torch import nn

# The shape of a sample, and the number of classes.
SHAPES = {"convnet": (1, 28, 28), "vgg": (3, 32, 32), "mlp": (512,)}
CLASSES = {"convnet": 10, "vgg": 10, "mlp": 20}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU}

# The networks as in the reports, without further options.
PLAIN = SimpleNamespace(activation="relu", bn=False, dropout=0.0, hidden=32)


def named(layers):
    """A network of the named layers; a layer that is None is left out."""
    return nn.Sequential(OrderedDict((name, layer) for name, layer in layers.items() if layer is not None))


def conv3x3(inputs, outputs):
    """3x3 convolution with padding 1."""
    return nn.Conv2d(inputs, outputs, kernel_size=3, padding=1)


def dropout(options):
    """The dropout layer; None if dropout is 0."""
    return nn.Dropout(options.dropout) if options.dropout else None


def convnet(options):
    """4,266 parameters; class scores [batch, 10] of images [batch, 1, 28, 28]."""
    layers = {}
    for number, (inputs, outputs) in enumerate([(1, 4), (4, 8)], 1):
        layers |= {
            f"conv{number}": conv3x3(inputs, outputs),
            f"bn{number}": nn.BatchNorm2d(outputs) if options.bn else None,
            f"activation{number}": ACTIVATIONS[options.activation](),
            f"pool{number}": nn.MaxPool2d(2),
        }
    head = {"flatten": nn.Flatten(), "dropout": dropout(options), "linear": nn.Linear(8 * 7 * 7, 10)}
    return named(layers | head)


def vgg(options):
    """2,625,962 parameters; class scores [batch, 10] of images [batch, 3, 32, 32]."""
    activation = ACTIVATIONS[options.activation]

    def convolution(inputs, outputs):
        return [conv3x3(inputs, outputs)] + ([nn.BatchNorm2d(outputs)] if options.bn else []) + [activation()]

    def block(inputs, middle, outputs):
        """Two convolutions and a pooling. Height and width are halved."""
        return nn.Sequential(*convolution(inputs, middle), *convolution(middle, outputs), nn.MaxPool2d(2))

    head = [nn.Linear(256 * 4 * 4, 256), activation(), dropout(options),
            nn.Linear(256, 32), activation(), nn.Linear(32, 10)]
    return named({"block1": block(3, 32, 64), "block2": block(64, 128, 256), "block3": block(256, 256, 256),
                  "flatten": nn.Flatten(), "block4": nn.Sequential(*(layer for layer in head if layer is not None))})


def mlp(options):
    """17,140 parameters; class scores [batch, 20] of feature vectors [batch, 512]."""
    return named({
        "layer1": nn.Linear(512, options.hidden), "bn1": nn.BatchNorm1d(options.hidden),
        "activation": ACTIVATIONS[options.activation](), "dropout": dropout(options),
        "layer2": nn.Linear(options.hidden, 20),
    })


NETWORKS = {"convnet": convnet, "vgg": vgg, "mlp": mlp}


def build(model, options):
    """The network of that name. `options` has activation, bn, dropout and hidden, as train_ddp.py's options do."""
    return NETWORKS[model](options)
