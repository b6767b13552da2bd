from functools import partial


def forward_step(data_iterator, model):
    batch = next(data_iterator)
    output_tensor, loss_mask = model(**batch)
    return output_tensor, partial(squared, loss_mask)


def squared(loss_mask, output_tensor):
    return (output_tensor.square() * loss_mask).sum(), loss_mask.sum()
