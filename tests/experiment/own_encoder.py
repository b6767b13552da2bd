import torch
from torch.nn.functional import gelu, unfold

from mimokit.engine import ColumnParallelLinear, RowParallelLinear, layer_config


class PatchEncoder(torch.nn.Module):
    def __init__(self, architecture, groups):
        super().__init__()
        self.channels, self.size = architecture.num_channels, architecture.patch_size
        pixels, width = self.channels * self.size**2, architecture.hidden_size
        config = layer_config(architecture, groups)
        same = {"config": config, "init_method": config.init_method, "tp_group": groups.tp}
        same |= {"bias": True, "skip_bias_add": False}
        self.up = ColumnParallelLinear(pixels, 4 * width, gather_output=False, **same)
        self.down = RowParallelLinear(4 * width, width, input_is_parallel=True, **same)

    def forward(self, pixel_values):  # [images, channels, height, width], or without channels
        images = pixel_values.reshape(-1, self.channels, *pixel_values.shape[-2:])
        patches = unfold(images, self.size, stride=self.size).transpose(1, 2)
        return self.down(gelu(self.up(patches)[0]))[0]  # [images, patches, hidden_size]
