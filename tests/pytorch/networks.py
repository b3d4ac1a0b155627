"""The experiments' networks, with the layers and parameter names of the reports' own programs."""

from torch import nn
from torch.nn import functional as F

# Shape of a sample, and number of classes.
SHAPES = {"convnet": (1, 28, 28), "vgg": (3, 32, 32), "mlp": (512,)}
CLASSES = {"convnet": 10, "vgg": 10, "mlp": 20}


class ConvNet(nn.Module):
    """4,266 parameters; class scores [batch, 10] of images [batch, 1, 28, 28]."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(4, 8, kernel_size=3, padding=1)
        self.linear = nn.Linear(8 * 7 * 7, 10)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.linear(x.flatten(1))


class Vgg(nn.Module):
    """Class scores [batch, 10] of images [batch, 3, 32, 32]: six convolutions, three linear layers."""

    def __init__(self):
        super().__init__()
        self.block1 = self.block(3, 32, 64)
        self.block2 = self.block(64, 128, 256)
        self.block3 = self.block(256, 256, 256)
        self.block4 = nn.Sequential(nn.Linear(256 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU(),
                                    nn.Linear(32, 10))

    @staticmethod
    def block(inputs, middle, outputs):
        """Two convolutions and a pooling: half the height and width."""
        return nn.Sequential(nn.Conv2d(inputs, middle, kernel_size=3, padding=1), nn.ReLU(),
                             nn.Conv2d(middle, outputs, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, images):
        return self.block4(self.block3(self.block2(self.block1(images))).flatten(1))


class Mlp(nn.Module):
    """17,140 parameters; class scores [batch, 20] of feature vectors [batch, 512]."""

    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(512, 32)
        self.bn1 = nn.BatchNorm1d(32)
        self.layer2 = nn.Linear(32, 20)

    def forward(self, features):
        return self.layer2(F.relu(self.bn1(self.layer1(features))))


NETWORKS = {"convnet": ConvNet, "vgg": Vgg, "mlp": Mlp}
