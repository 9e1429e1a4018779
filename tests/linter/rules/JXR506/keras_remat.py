from keras.src.backend.common.remat import remat
